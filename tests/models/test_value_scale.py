import torch

from ludus.models.policy import ValueScale


def test_before_any_target_nothing_changes():
    values = torch.tensor([-3.0, 5.0])
    assert torch.equal(ValueScale().denormalise(values), values)
    assert torch.equal(ValueScale().normalise(values), values)


def test_first_targets_count_in_full():
    scale = ValueScale()
    targets = 100.0 + 20.0 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    scale.update(targets)
    normal = scale.normalise(targets)
    torch.testing.assert_close(normal.mean(), torch.tensor(0.0), atol=2e-2, rtol=0)
    torch.testing.assert_close(normal.std(), torch.tensor(1.0), atol=2e-2, rtol=0)
    torch.testing.assert_close(scale.denormalise(normal), targets)


def test_later_targets_move_it():
    scale = ValueScale(decay=0.5)
    scale.update(torch.tensor([0.0, 2.0]))
    for _ in range(30):
        scale.update(torch.tensor([8.0, 12.0]))
    torch.testing.assert_close(scale.denormalise(torch.tensor([0.0, 1.0])), torch.tensor([10.0, 12.0]))


def test_equal_targets_do_not_blow_up():
    scale = ValueScale()
    scale.update(torch.full((5,), 3.0))
    assert scale.normalise(torch.tensor([3.0, 4.0])).tolist() == [0.0, 10.0]

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.losses import (
    approximate_kl,
    detached,
    explained_variance,
    masked_mean,
    ppo_surrogate,
    standardise,
    value_loss,
)
from ludus.models.operators import LOWEST
from ludus.models.policy import Unrolled


def test_masked_mean_ignores_what_is_masked_even_if_nan() -> None:
    x = torch.tensor([1.0, float("nan"), 3.0], requires_grad=True)
    mean = masked_mean(x, torch.tensor([True, False, True]))
    torch.autograd.backward(mean)
    assert mean.item() == 2.0
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.0, 0.5]


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.ones(3), torch.zeros(3).bool()).item() == 0.0


def test_standardise_uses_the_rows_that_count() -> None:
    mask = torch.tensor([True, True, False])
    assert standardise(torch.tensor([1.0, 3.0, 100.0]), mask)[:2].tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, 2.2),  # within the clip
        (1.5, 2.0, 2.4),  # gain is capped
        (0.5, 2.0, 1.0),  # loss is not
        (0.5, -2.0, -1.6),  # gain is capped
        (2.0, -2.0, -4.0),  # loss is not
        (9.0, -2.0, -6.0),  # until the dual clip
    ],
)
def test_ppo_surrogate_with_dual_clip(ratio: float, advantage: float, expected: float) -> None:
    log_ratio = torch.tensor(ratio, dtype=torch.float64).log()
    found = ppo_surrogate(log_ratio, torch.tensor(advantage, dtype=torch.float64), clip=0.2, dual_clip=3.0)
    assert found.item() == pytest.approx(expected)


def test_surrogate_without_clips_is_importance_weighted_advantage() -> None:
    log_ratio, advantage = torch.tensor([2.0, -2.0, 2.0]), torch.tensor([1.0, -1.0, -1.0])
    torch.testing.assert_close(ppo_surrogate(log_ratio, advantage), log_ratio.exp() * advantage)


def test_value_loss_is_half_the_square_and_linear_beyond_huber() -> None:
    value, target = torch.tensor([1.0, 5.0]), torch.zeros(2)
    assert value_loss(value, target).tolist() == [0.5, 12.5]
    assert value_loss(value, target, huber=2.0).tolist() == [0.5, 8.0]


def test_clipped_value_stops_learning_once_it_moved_far_enough_towards_the_target() -> None:
    value = torch.tensor([0.5, -0.5], requires_grad=True)
    loss = value_loss(value, torch.ones(2), old_value=torch.zeros(2), clip=0.2)
    torch.autograd.backward(loss.sum())
    assert loss.tolist() == pytest.approx([0.5 * 0.8**2, 0.5 * 1.5**2])
    assert value.grad is not None
    assert value.grad.tolist() == [0.0, -1.5]


def test_value_clip_needs_the_old_value() -> None:
    with pytest.raises(ValueError, match=r"clip=0\.2 needs old_value"):
        value_loss(torch.ones(1), torch.ones(1), clip=0.2)


def test_approximate_kl_is_exact_in_expectation() -> None:
    old, new = torch.tensor([0.2, 0.8]).double(), torch.tensor([0.5, 0.5]).double()
    expected = (old * (old.log() - new.log())).sum()
    torch.testing.assert_close((old * approximate_kl(new.log() - old.log())).sum(), expected)


def test_explained_variance() -> None:
    target, mask = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([True, True, True, False])
    assert explained_variance(target, target, mask).item() == 1.0
    assert explained_variance(torch.zeros(4), target, mask).item() == pytest.approx(0.0)
    assert explained_variance(-target, target, mask).item() == pytest.approx(-3.0)
    assert explained_variance(target, torch.ones(4), mask).item() == 0.0


def test_detached_statistics_have_no_graph() -> None:
    assert not detached(loss=torch.ones((), requires_grad=True) * 2)["loss"].requires_grad


def unrolled_of(logits: Tensor, legal: Tensor) -> Unrolled:
    rows = len(logits)
    return Unrolled(
        log_prob=torch.zeros(rows, 1),
        entropy=torch.zeros(rows, 1),
        value=torch.zeros(rows),
        log_probs={"action": torch.log_softmax(torch.where(legal, logits, LOWEST), -1)},
        in_use=torch.ones(rows, 1).bool(),
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_a_constant_policy_is_told_from_one_that_is_fresh_or_sure_of_itself(scale: float) -> None:
    """Whatever is illegal where."""
    generator = torch.Generator().manual_seed(0)
    legal = torch.rand(64, 7, generator=generator) < 0.6
    valid = torch.rand(64, generator=generator) < 0.9
    live, dead = scale * torch.randn(64, 7, generator=generator), scale * torch.randn(7, generator=generator)
    dead = torch.where(valid.unsqueeze(1), dead, live)
    assert losses.is_constant(unrolled_of(live, legal), valid) == 0.0
    assert losses.is_constant(unrolled_of(dead, legal), valid) == 1.0
    one = dead.clone()
    seen = int(torch.nonzero(valid & legal[:, 0] & (legal.sum(1) > 1))[5])
    one[seen, 0] += 0.01
    assert losses.is_constant(unrolled_of(one, legal), valid) == 0.0


def test_few_decisions_say_nothing_of_a_policy() -> None:
    legal = torch.ones(64, 7).bool()
    valid = torch.arange(64) < 8
    assert losses.is_constant(unrolled_of(torch.zeros(64, 7), legal), valid) == 0.0
    assert losses.is_constant(unrolled_of(torch.zeros(64, 7), torch.arange(7) < legal[:, :1].long()), ~valid) == 0.0

import itertools

import numpy as np
import pytest
import torch

from ludus.models.decisions import Drawn, Greedy, Recorded, decide, decide_several, draw
from ludus.models.operators import LOWEST


def masked(logits, legal):
    return torch.where(legal, logits, LOWEST)


def test_masked_options_are_never_drawn():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 9, generator=generator) * 5
    legal = torch.rand(100, 9, generator=generator) < 0.4
    legal[torch.arange(100), torch.randint(9, (100,), generator=generator)] = True
    uniforms = torch.rand(10_000, 100, generator=generator)
    uniforms[0], uniforms[1] = 0.0, 1.0 - 2.0**-24
    action, _ = draw(masked(logits, legal).expand(10_000, -1, -1), uniforms)
    assert legal.expand(10_000, -1, -1).gather(-1, action.unsqueeze(-1)).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-24])
def test_single_legal_option_is_drawn_whatever_its_logit(uniform):
    for only in range(4):
        legal = torch.arange(4) == only
        logits = torch.where(legal, -80.0, 80.0)[None]
        action, log_prob = draw(masked(logits, legal), torch.tensor([uniform]))
        assert action.tolist() == [only]
        assert log_prob.tolist() == [0.0]


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    uniforms = (torch.arange(10_000) + 0.5) / 10_000
    action, log_prob = draw(probabilities.log().clamp(min=LOWEST).expand(10_000, 4), uniforms)
    shares = torch.bincount(action, minlength=4) / 10_000
    torch.testing.assert_close(shares, probabilities, atol=2e-4, rtol=0)
    torch.testing.assert_close(log_prob, probabilities.log()[action])


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12])
def test_illegal_options_get_no_gradient_however_the_loss_is_scaled(scale):
    legal = torch.tensor([[True, False, True], [False, True, False]])
    logits = torch.tensor([[0.3, 9.0, -1.0], [2.0, 0.1, -3.0]], requires_grad=True)
    recorded = Recorded({"move": torch.tensor([2, 1])}, torch.ones(2, dtype=torch.bool))
    decision = decide("move", logits, legal, None, recorded)
    (scale * (decision.entropy + decision.log_prob).sum()).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~legal] == 0).all()
    assert (logits.grad[0, legal[0]] != 0).all()


def test_greedy_takes_the_likeliest_legal_option():
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    decision = decide("move", logits, torch.tensor([[False, True, True]]), None, Greedy())
    assert decision.action.tolist() == [1]
    torch.testing.assert_close(decision.log_prob, torch.tensor([1.0]).sigmoid().log())


def test_no_legal_option_is_named():
    legal = torch.tensor([[True, True], [False, False]])
    uniforms = torch.zeros(2, 1)
    for chooser in (Drawn(uniforms), Greedy()):
        with pytest.raises(ValueError, match="head 'move', row 1: no option is legal"):
            decide("move", torch.zeros(2, 2), legal, None, chooser)
    with pytest.raises(ValueError, match="head 'move', model 0, row 1"):
        decide("move", torch.zeros(1, 2, 2), legal[None], None, Drawn(uniforms[None]))


def test_logits_that_are_not_numbers_are_named():
    logits = torch.zeros(3, 4)
    logits[2, 1] = torch.nan
    with pytest.raises(ValueError, match="head 'move', row 2: logits are not finite"):
        decide("move", logits, None, None, Drawn(torch.zeros(3, 1)))


def test_head_out_of_use_may_have_no_legal_option():
    legal = torch.tensor([[True, True], [False, False]])
    in_use = torch.tensor([True, False])
    decision = decide("move", torch.zeros(2, 2), legal, in_use, Drawn(torch.full((2, 1), 0.9)))
    assert decision.action.tolist() == [1, 0]
    torch.testing.assert_close(decision.log_prob, torch.tensor([0.5, 1.0]).log())


def test_recorded_illegal_action_is_refused_only_where_valid():
    legal = torch.tensor([[True, False]])
    actions = {"move": torch.tensor([1], dtype=torch.int32)}
    with pytest.raises(ValueError, match="head 'move', row 0: action 1 is not legal"):
        decide("move", torch.zeros(1, 2), legal, None, Recorded(actions, torch.tensor([True])))
    decision = decide("move", torch.zeros(1, 2), legal, None, Recorded(actions, torch.tensor([False])))
    assert decision.log_prob.tolist() == [0.0]


def test_all_masked_padding_has_finite_gradient():
    logits = torch.zeros(1, 3, requires_grad=True)
    actions = {"move": torch.tensor([0])}
    legal = torch.zeros(1, 3, dtype=torch.bool)
    decision = decide("move", logits, legal, None, Recorded(actions, torch.tensor([False])))
    (decision.log_prob + decision.entropy).sum().backward()
    assert decision.entropy.isfinite().all()
    assert logits.grad.isfinite().all()


def sequences(num, picks):
    """All ordered picks of different options, ended early or not."""
    for length in range(1, picks + 1):
        for chosen in itertools.permutations(range(num), length):
            yield (*chosen, *(-1,) * (picks - length))


def scores_given(chosen):
    """Logits of 4 options and the end that depend on what is chosen already."""
    weights = torch.tensor(np.random.default_rng(3).standard_normal((4, 5)), dtype=torch.float32)
    return torch.tensor([0.3, -1.0, 0.5, 1.2, 0.1]) + chosen.float() @ weights


def evaluate(actions, legal):
    rows = torch.tensor(actions, dtype=torch.int32)
    masks = legal.expand(len(rows), -1)
    recorded = Recorded({"group": rows}, torch.ones(len(rows), dtype=torch.bool))
    return decide_several("group", scores_given, rows.shape[1], masks, None, recorded)


@pytest.mark.parametrize("legal", [(1, 1, 1, 1), (1, 0, 1, 1), (0, 0, 1, 0)])
def test_several_picks_are_one_distribution(legal):
    legal = torch.tensor(legal, dtype=torch.bool)
    actions = [row for row in sequences(4, 3) if all(legal[pick] for pick in row if pick >= 0)]
    decision = evaluate(actions, legal)
    probabilities = decision.log_prob.exp()
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
    # The expectation of the entropies along the way is the entropy of the whole.
    torch.testing.assert_close((probabilities * decision.entropy).sum(), -(probabilities * decision.log_prob).sum())


def test_several_picks_are_drawn_as_evaluated():
    legal = torch.ones(20_000, 4, dtype=torch.bool)
    uniforms = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(1))
    drawn = decide_several("group", scores_given, 3, legal, None, Drawn(uniforms))
    evaluated = evaluate(drawn.action.tolist(), legal[0])
    torch.testing.assert_close(drawn.log_prob, evaluated.log_prob, atol=1e-5, rtol=1e-5)
    actions, counts = np.unique(drawn.action.numpy(), axis=0, return_counts=True)
    expected = evaluate(actions.tolist(), legal[0]).log_prob.exp().numpy()
    np.testing.assert_allclose(counts / 20_000, expected, atol=0.015)


def test_picks_out_of_use_are_empty():
    in_use = torch.tensor([False, True])
    legal = torch.tensor([[False] * 4, [True] * 4])
    decision = decide_several("group", scores_given, 2, legal, in_use, Drawn(torch.zeros(2, 2)))
    assert decision.action[0].tolist() == [-1, -1]
    assert decision.log_prob[0] == 0
    assert decision.action[1, 0] == 0

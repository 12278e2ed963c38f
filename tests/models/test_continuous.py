"""Distributions of real numbers within bounds: against sums over many draws, exact values, and their own densities."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from ludus.data.specs import Box
from ludus.models.continuous import LEVELS, BoxDistribution, Numbers, log_normal_cdf, normal_quantile
from ludus.models.decisions import Drawn, Greedy, Recorded, decide_numbers

DRAWS = 200_000
FAMILIES: tuple[BoxDistribution, ...] = get_args(BoxDistribution)
PARAMETERS = [(0.0, 0.0), (1.5, -1.0), (-3.0, 1.0), (0.5, -3.0), (4.0, 2.0)]
"""Fresh, off the middle, on a bound, narrow, and wide on a bound."""


def evenly(draws: int = DRAWS) -> Tensor:
    return ((torch.arange(draws) + 0.5) / draws).unsqueeze(-1)


def raw(*parameters: float) -> Tensor:
    return torch.tensor(parameters).reshape(1, 1, 2)


def drawn(numbers: Numbers, parameters: Tensor) -> tuple[Tensor, Tensor]:
    many = parameters.expand(DRAWS, 1, 2)
    action = numbers.draw(many, evenly())
    return action, numbers.log_prob(many, action)


def test_normal_numbers_follow_the_normal_distribution() -> None:
    shares = torch.linspace(1e-5, 1.0 - 1e-5, 10_001)
    torch.testing.assert_close(normal_quantile(shares), torch.special.ndtri(shares.double()).float(), atol=1e-3, rtol=0)
    z = torch.linspace(-60.0, 8.0, 20_001)
    torch.testing.assert_close(log_normal_cdf(z), torch.special.log_ndtr(z.double()).float(), atol=1e-6, rtol=1e-6)
    assert torch.autograd.gradcheck(
        log_normal_cdf, torch.tensor([-30.0, -2.6, -2.4, 0.0, 3.0]).double().requires_grad_()
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_all_probability_lies_within_the_bounds(family: BoxDistribution, parameters: tuple[float, float]) -> None:
    numbers = Numbers(Box(size=1), family)
    places = torch.tanh(torch.linspace(-7.0, 7.0, DRAWS)).unsqueeze(-1)  # closer and closer towards the bounds
    density = numbers.log_prob(raw(*parameters), places).exp()
    mass = torch.trapezoid(density.double(), places.squeeze(-1).double())  # all but 2e-6 of the range
    if family == "clipped":
        mass = mass + sum(numbers.log_prob(raw(*parameters), torch.tensor([[bound]])).exp() for bound in (-1.0, 1.0))
    assert float(mass) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_entropy_and_divergence_are_the_means_over_draws(
    family: BoxDistribution, parameters: tuple[float, float]
) -> None:
    numbers, p = Numbers(Box(size=1), family), raw(*parameters)
    q = p + torch.tensor([0.3, -0.4])
    action, log_prob = drawn(numbers, p)
    on_bound = (action.abs() == 1.0).squeeze(-1)
    assert family == "clipped" or not on_bound.any()
    surprise = -torch.where(on_bound, log_prob, log_prob + math.log(2.0 / LEVELS))
    assert numbers.entropy(p).item() == pytest.approx(surprise.mean().item(), abs=0.01)
    difference = (log_prob - numbers.log_prob(q, action)).mean().item()
    assert numbers.divergence(p, q).item() == pytest.approx(difference, rel=0.02, abs=1e-3)
    assert numbers.divergence(p, p).item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_density_that_is_told(family: BoxDistribution) -> None:
    """Shares of draws in ten parts of the range, against the integral of the density over each."""
    numbers, parameters = Numbers(Box(size=1), family), raw(0.4, 0.3)
    action, _ = drawn(numbers, parameters)
    inside = action[action.abs() < 1.0]
    shares = torch.histc(inside, 10, -1.0, 1.0) / DRAWS
    places = -1.0 + 2.0 * (torch.arange(100_000) + 0.5) / 100_000
    density = numbers.log_prob(parameters, places.unsqueeze(-1)).exp()
    torch.testing.assert_close(shares, density.reshape(10, -1).mean(1) * 0.2, atol=2e-3, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_actions_are_in_units_of_the_game(family: BoxDistribution) -> None:
    box = Box(size=3, low=(-1.0, 0.1, -2e4), high=(-0.3, 0.7, 1e4))
    numbers = Numbers(box, family)
    parameters = 3.0 * torch.randn(5_000, 3, 2, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(5_000, 3, generator=torch.Generator().manual_seed(1))
    uniforms[0], uniforms[1] = 0.0, 1.0 - 2.0**-24
    for action in (numbers.draw(parameters, uniforms), numbers.mode(parameters)):
        low, high = (torch.tensor(bound) for bound in box.bounds)
        assert numbers.inside(action).all()
        assert ((action >= low) & (action <= high)).all()
        assert numbers.log_prob(parameters, action).isfinite().all()
        if family == "clipped":
            assert (action == low).any(), "a bound is taken exactly"
            assert (action == high).any()
    assert not numbers.inside(torch.tensor([[-0.5, float("nan"), 0.0], [-0.5, 0.8, 0.0]])).any()
    assert numbers.rest(torch.device("cpu")).tolist() == pytest.approx([-0.3, 0.1, 0.0])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_stay_finite_however_extreme_the_parameters(family: BoxDistribution) -> None:
    numbers = Numbers(Box(size=2), family)
    extremes = torch.tensor([-60.0, -5.0, 0.0, 5.0, 60.0])
    p = torch.cartesian_prod(extremes, extremes).reshape(-1, 1, 2).repeat(1, 2, 1).requires_grad_()
    action = numbers.draw(p.detach(), torch.full((25, 2), 0.3))
    for bound in (action, torch.full((25, 2), -1.0), torch.full((25, 2), 1.0)):
        total = numbers.log_prob(p, bound).sum() + numbers.entropy(p).sum() + numbers.divergence(p, p.flip(0)).sum()
        (gradient,) = torch.autograd.grad(total, p)
        assert gradient.isfinite().all()
    assert numbers.inside(numbers.mode(p)).all()


def test_a_fresh_head_spreads_over_the_range() -> None:
    for family in FAMILIES:
        numbers = Numbers(Box(size=1), family)
        action, _ = drawn(numbers, raw(0.0, 0.0))
        assert action.mean().item() == pytest.approx(0.0, abs=1e-3)
        assert 0.35 < action.std().item() < 0.6
        assert 0.95 < numbers.entropy(raw(0.0, 0.0)).item() / numbers.most_entropy < 1.0


def test_decisions_of_numbers() -> None:
    numbers = Numbers(Box(size=2, low=1.0, high=3.0))
    parameters = torch.tensor([[[0.5, 0.0], [-9.0, 0.0]]]).expand(2, 2, 2)
    in_use = torch.tensor([True, False])
    acted = decide_numbers("push", numbers, parameters, in_use, Drawn(torch.full((2, 2), 0.5)))
    assert acted.action.tolist() == [[pytest.approx(2.4898, abs=1e-4), 1.0], [1.0, 1.0]]
    assert acted.log_prob[1].item() == 0.0
    greedy = decide_numbers("push", numbers, parameters, in_use, Greedy())
    torch.testing.assert_close(greedy.action, acted.action)
    recorded = Recorded({"push": acted.action}, torch.ones(2, dtype=torch.bool))
    again = decide_numbers("push", numbers, parameters, in_use, recorded)
    assert again.log_prob.tolist() == acted.log_prob.tolist()
    assert again.entropy is not None
    assert again.entropy[1].item() == 0.0

    outside = Recorded({"push": torch.tensor([[2.0, 3.5], [0.0, 0.0]])}, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"head 'push', row 0: action \[2.0, 3.5\] is not within the bounds"):
        decide_numbers("push", numbers, parameters, in_use, outside)
    with pytest.raises(ValueError, match="head 'push', row 1: logits are not finite"):
        decide_numbers("push", numbers, parameters * torch.tensor([[[1.0]], [[math.nan]]]), None, Greedy())

"""Adam with clipping that leaves everything alone when a loss is no number."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from ludus.workers.optimiser import AdamSettings, Optimiser

SETTINGS = AdamSettings(beta1=0.8, beta2=0.95, epsilon=1e-5, max_gradient_norm=0.5)


def new_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def loss_of(network: nn.Module, step: int, scale: float = 1.0) -> torch.Tensor:
    inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(step))
    loss: torch.Tensor = scale * network(inputs).square().mean()
    return loss


@pytest.mark.parametrize("scale", [1e-3, 100.0], ids=["short gradients", "clipped gradients"])
def test_it_does_what_torch_does(scale: float) -> None:
    ours, theirs = new_network(), new_network()
    optimiser = Optimiser(list(ours.parameters()), SETTINGS)
    reference = torch.optim.Adam(theirs.parameters(), betas=(0.8, 0.95), eps=1e-5)
    for step in range(5):
        rate = 0.01 / (step + 1)
        assert float(optimiser.step(loss_of(ours, step, scale), rate)) == 0.0
        reference.param_groups[0]["lr"] = rate
        reference.zero_grad()
        loss_of(theirs, step, scale).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_convolutions_may_lie_differently_in_memory() -> None:
    """As they do where images come channels last: the kernel of the step takes numbers as they lie."""
    planes = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    torch.manual_seed(0)
    ours = nn.Conv2d(3, 4, 3)
    theirs = copy.deepcopy(ours)
    Optimiser(list(ours.parameters()), SETTINGS._replace(max_gradient_norm=1e9)).step(
        ours(planes).square().mean(), 0.01
    )
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-5, foreach=False)
    theirs(planes).square().mean().backward()
    reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_changes_nothing(scale: float) -> None:
    network, untouched = new_network(), new_network()
    optimiser, other = (Optimiser(list(one.parameters()), SETTINGS) for one in (network, untouched))
    for step, spoiler in enumerate((1.0, scale, 1.0)):
        broken = optimiser.step(loss_of(network, step, spoiler), 0.01)
        assert float(broken) == (step == 1)
        if step != 1:
            other.step(loss_of(untouched, step), 0.01)
    for one, same in zip(network.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(one, same), "as if the broken step had never been"


def test_parameters_that_a_loss_does_not_use_stay_as_they_are() -> None:
    network = new_network()
    spare = nn.Parameter(torch.ones(2))
    optimiser = Optimiser([spare, *network.parameters()], SETTINGS)
    optimiser.step(loss_of(network, 0) + spare.sum(), 0.1)
    before = spare.detach().clone()
    optimiser.step(loss_of(network, 1), 0.1)
    assert torch.equal(spare, before)
    assert optimiser.save()["0.step"] == 1.0
    assert optimiser.save()["1.step"] == 2.0


def test_it_goes_on_from_what_it_saved() -> None:
    first, second = new_network(), new_network()
    one, other = (Optimiser(list(network.parameters()), SETTINGS) for network in (first, second))
    assert one.save() == {}, "nothing has been learned yet"
    for step in range(3):
        one.step(loss_of(first, step), 0.01)
        other.step(loss_of(second, step), 0.01)
    saved = {name: np.array(array) for name, array in other.save().items()}
    other.clear()
    assert other.save() == {}
    other.load(saved)
    one.step(loss_of(first, 3), 0.01)
    other.step(loss_of(second, 3), 0.01)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)

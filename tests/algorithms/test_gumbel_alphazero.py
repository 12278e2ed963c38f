"""Gumbel AlphaZero: the loss pulls the policy to what searches found, and values to outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tabular_policy import TabularPolicy, random_batch

from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero
from ludus.data.search import SEARCH_POLICY, GumbelSearch
from ludus.data.specs import Choice


def test_learns_the_searched_policy_and_the_outcome() -> None:
    policy = TabularPolicy(2, {"move": Choice(num=3)}, dtype=torch.float64)
    wanted = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.1, 0.9]], dtype=torch.float64)
    batch = random_batch(policy, 6, 8)
    states = batch.observation["state"][..., 0]
    outcome = torch.tensor([1.0, -1.0], dtype=torch.float64)[states]
    batch = replace(
        batch,
        reward=outcome,
        over=torch.ones_like(batch.over),
        valid=batch.valid,
        extra={SEARCH_POLICY: wanted[states]},
    )
    algorithm = GumbelAlphaZero()
    prepared = algorithm.prepare(policy, {}, batch)
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.1)
    losses = []
    for _ in range(300):
        optimiser.zero_grad()
        loss = algorithm.loss(policy, prepared)
        torch.autograd.backward(loss.total)
        optimiser.step()
        losses.append(float(loss.total.detach()))
    assert losses[0] > 0.5
    assert losses[-1] < 1e-2, "nothing is left to learn: the loss is a divergence, not a cross entropy"
    assert torch.allclose(policy.logits["move"].softmax(-1), wanted, atol=0.02)
    assert torch.allclose(policy.values, torch.tensor([1.0, -1.0], dtype=torch.float64), atol=0.02)
    assert loss.measured()["search_entropy"] > 0.3


def test_decisions_without_a_search_are_refused() -> None:
    policy = TabularPolicy(2, {"move": Choice(num=3)})
    with pytest.raises(ValueError, match="these decisions were made without one"):
        GumbelAlphaZero().loss(policy, random_batch(policy, 2, 2))


def test_moves_of_several_heads_are_refused() -> None:
    policy = TabularPolicy(2, {"move": Choice(num=3), "where": Choice(num=2)})
    with pytest.raises(ValueError, match="more than one choice"):
        GumbelAlphaZero(search=GumbelSearch(simulations=4)).check([policy.kind])

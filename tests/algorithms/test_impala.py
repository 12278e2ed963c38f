from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tabular_policy import random_batch
from test_ppo import trained_policy

from ludus.algorithms.actor_critic import Impala
from ludus.algorithms.returns import discounts, td_lambda, upgo, vtrace


def test_policy_loss_is_the_vtrace_gradient() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    unrolled = learner.unroll(batch)
    discount = discounts(batch.elapsed[:-1], batch.over[:-1], 0.9, torch.float64)
    steps = batch.reward[:-1], unrolled.value, discount, batch.follows[:-1]
    log_ratio = (unrolled.log_prob - batch.log_prob).sum(-1)[:-1]
    trace = vtrace(log_ratio, *steps, rho_clip=1.0, c_clip=1.0, lambda_=0.8)
    upgoing = log_ratio.exp().clamp(max=1.0) * (upgo(*steps) - unrolled.value[:-1])
    advantage = (trace.advantage + 0.5 * upgoing).detach()
    expected = -(unrolled.log_prob.sum(-1)[:-1] * advantage)[batch.valid[:-1]].mean()
    algorithm = Impala(gamma=0.9, lambda_=0.8, upgo_weight=0.5)
    statistics = algorithm.loss(learner, batch).measured()
    torch.testing.assert_close(statistics["policy_loss"], expected.detach())
    error = (trace.target - unrolled.value[:-1].detach())[batch.valid[:-1]]
    torch.testing.assert_close(statistics["value_loss"], 0.5 * error.square().mean())


def test_per_head_corrects_each_head_by_its_own_ratio() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    unrolled = learner.unroll(batch)
    discount = discounts(batch.elapsed[:-1], batch.over[:-1], 0.99, torch.float64)
    steps = batch.reward[:-1], unrolled.value, discount, batch.follows[:-1]
    expected = 0.0
    for head in range(2):
        log_ratio = (unrolled.log_prob - batch.log_prob)[:-1, :, head]
        trace = vtrace(log_ratio, *steps, rho_clip=1.0, c_clip=1.0, lambda_=1.0)
        gradient_term = unrolled.log_prob[:-1, :, head] * trace.advantage
        expected -= gradient_term[batch.valid[:-1]].mean().item()
    found = Impala(ratio="per_head").loss(learner, batch).statistics["policy_loss"]
    assert found.item() == pytest.approx(expected)


def test_fresh_data_is_trained_on_td_lambda_targets() -> None:
    policy = trained_policy()
    batch = random_batch(policy, 8, 4)
    discount = discounts(batch.elapsed[:-1], batch.over[:-1], 0.99, torch.float64)
    target = td_lambda(batch.reward[:-1], batch.value, discount, batch.follows[:-1], 1.0)
    expected = 0.5 * (target - batch.value[:-1])[batch.valid[:-1]].square().mean()
    found = Impala().loss(policy, batch).measured()
    torch.testing.assert_close(found["value_loss"], expected)
    assert found["kl"].item() == pytest.approx(0.0, abs=1e-12)


def test_rows_that_do_not_count_still_pass_traces_on() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    first_only = torch.zeros_like(batch.valid)
    first_only[0] = True
    batch = replace(batch, valid=first_only, follows=torch.ones_like(first_only), over=~torch.ones_like(first_only))
    losses = [
        Impala().loss(learner, replace(batch, reward=batch.reward + bonus)).statistics["value_loss"]
        for bonus in (0.0, 100.0 * (torch.arange(9) == 5)[:, None])
    ]
    assert losses[1] > 2 * losses[0]


def test_gradient_reaches_policy_and_values_but_not_through_the_targets() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    policy_only = Impala(value_weight=0.0).loss(learner, batch).total
    (gradient,) = torch.autograd.grad(policy_only, [learner.values], allow_unused=True, materialize_grads=True)
    assert gradient.abs().max().item() == 0.0


@pytest.mark.parametrize("name", ["rho_clip", "c_clip"])
def test_clips_must_be_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Impala\.{name} must be above 0, got 0"):
        Impala(**{name: 0.0})  # type: ignore[arg-type]

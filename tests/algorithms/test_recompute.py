"""Values and advantages under the newest weights, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tabular_policy import TabularPolicy, random_batch

from ludus.algorithms.actor_critic import A2C
from ludus.algorithms.ppo import PPO
from ludus.algorithms.teacher import (
    LOG_PROB,
    LOG_RATIO,
    VALUE,
    Teacher,
    apply_recomputed,
    recomputed_columns,
    teacher_columns,
)
from ludus.data.batch import Batch
from ludus.data.specs import Choice

HEADS = {"move": Choice(num=3), "aim": Choice(num=4)}
GAMMA, LAMBDA = 0.9, 0.8


def trained_policy(seed: int) -> TabularPolicy:
    policy = TabularPolicy(5, HEADS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return policy


def recomputed(policy: TabularPolicy, batch: Batch) -> Batch:
    return apply_recomputed(batch.with_extra(**recomputed_columns(("advantages",), policy, None, batch)))


def all_valid(batch: Batch) -> Batch:
    """Every decision is young enough, and an episode goes on unless it is over."""
    valid = torch.ones_like(batch.valid)
    valid[-1] = False
    follows = ~batch.over & valid
    follows[-2:] = False
    return replace(batch, valid=valid, follows=follows)


def test_rows_that_count_get_the_values_of_the_newest_weights() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    columns = recomputed_columns(("values",), learner, None, batch)
    assert columns.keys() == {VALUE}
    after = torch.zeros_like(batch.valid)
    after[1:] = batch.valid[:-1]
    rows = batch.valid | after
    torch.testing.assert_close(columns[VALUE][rows], learner.unroll(batch).value[rows].detach())
    applied = apply_recomputed(batch.with_extra(**columns))
    assert applied.extra == {}
    assert torch.equal(applied.value, columns[VALUE])


def test_the_ratio_is_of_all_heads_together_where_it_counts() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    columns = recomputed_columns(("advantages",), learner, None, batch)
    assert columns.keys() == {VALUE, LOG_PROB}
    log_ratio = recomputed(learner, batch).extra[LOG_RATIO]
    expected = (learner.unroll(batch).log_prob - batch.log_prob).sum(-1).detach()
    torch.testing.assert_close(log_ratio[batch.valid], expected[batch.valid])
    assert not log_ratio[~batch.valid].any()


def test_with_the_weights_that_acted_advantages_stay_what_they_are() -> None:
    policy = trained_policy(0)
    batch = random_batch(policy, 8, 4)
    for algorithm in (PPO(gamma=GAMMA, lambda_=LAMBDA), A2C(gamma=GAMMA, lambda_=LAMBDA)):
        plain = algorithm.prepare(policy, {}, batch)
        again = algorithm.prepare(policy, {}, recomputed(policy, batch))
        for name in ("advantage", "target"):
            torch.testing.assert_close(again.extra[name][batch.valid], plain.extra[name][batch.valid])


def test_advantages_by_hand_after_the_policy_moved() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = all_valid(random_batch(actor, 8, 4))
    value, ratio = learner.unroll(batch).value.detach(), learner.unroll(batch).log_prob.detach()
    ratio = (ratio - batch.log_prob).sum(-1).exp().clamp(max=1.0)
    given = recomputed(learner, batch)
    settings = {"gamma": GAMMA, "lambda_": LAMBDA, "normalise_advantage": False}
    surrogate = PPO(**settings).prepare(learner, {}, given)  # type: ignore[arg-type]
    gradient = A2C(**settings).prepare(learner, {}, given)  # type: ignore[arg-type]
    for column in range(4):
        correction = 0.0
        for t in range(7, -1, -1):
            goes_on = 0.0 if batch.over[t, column] else GAMMA
            error = batch.reward[t, column] + goes_on * value[t + 1, column] - value[t, column]
            reach = LAMBDA * goes_on * float(batch.follows[t, column])
            advantage = float(error + reach * correction)
            rho = float(ratio[t, column])
            correction = rho * float(error) + reach * rho * correction
            found = [batch_.extra["advantage"][t, column].item() for batch_ in (surrogate, gradient)]
            assert found == pytest.approx([advantage, rho * advantage])
            target = surrogate.extra["target"][t, column].item()
            assert target == pytest.approx(float(value[t, column]) + correction)


def test_a_teacher_that_was_asked_is_not_asked_again() -> None:
    actor, teacher, other = (trained_policy(seed) for seed in range(3))
    batch = random_batch(actor, 8, 4)
    columns = teacher_columns(teacher, batch)
    assert Teacher().columns(other, batch.with_extra(**columns)) == {}
    assert Teacher().columns(teacher, batch).keys() == columns.keys() == {"teacher.move", "teacher.aim"}

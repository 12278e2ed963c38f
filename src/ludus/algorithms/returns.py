"""Returns and advantages along trajectories: GAE, TD(lambda), expected SARSA(lambda), V-trace and UPGO. Shapes: T
decisions, T1 also the row after the last, B trajectories. A `discount` is gamma ** elapsed, and 0 where the episode is
over. `follows` is False where the next row is no decision of the same episode; its value may still be the bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.algorithms.algorithm import evaluate_rows
from ludus.algorithms.losses import is_legal, standardise, update_value_scale
from ludus.algorithms.teacher import LOG_RATIO
from ludus.data.batch import Batch
from ludus.models.policy import Policy, Unrolled


def discounts(elapsed: Tensor, over: Tensor, gamma: float, dtype: torch.dtype) -> Tensor:
    """gamma ** elapsed, and 0 where the episode is over."""
    return torch.where(over, 0.0, torch.pow(gamma, elapsed.to(dtype)))


def temporal_differences(reward_TB: Tensor, value_T1B: Tensor, discount_TB: Tensor) -> Tensor:
    return reward_TB + discount_TB * value_T1B[1:] - value_T1B[:-1]


@torch.no_grad()
def sum_backwards(error_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """total[t] = error[t] + decay[t] * total[t + 1], and 0 after the last row."""
    errors, decays = error_TB.unbind(0), decay_TB.unbind(0)
    totals = [errors[-1]]
    for t in range(len(errors) - 2, -1, -1):  # not in place: `torch.vmap` has no rule for that
        totals.append(torch.addcmul(errors[t], decays[t], totals[-1]))
    return torch.stack(totals[::-1])


@torch.no_grad()
def gae(
    reward_TB: Tensor, value_T1B: Tensor, discount_TB: Tensor, follows_TB: Tensor, lambda_: float | Tensor
) -> Tensor:
    """Generalised advantage estimates."""
    error_TB = temporal_differences(reward_TB, value_T1B, discount_TB)
    return sum_backwards(error_TB, lambda_ * discount_TB * follows_TB)


@torch.no_grad()
def td_lambda(reward_TB: Tensor, value_T1B: Tensor, discount_TB: Tensor, follows_TB: Tensor, lambda_: float) -> Tensor:
    """Value targets: the mixture of n-step returns given by `lambda_`."""
    return value_T1B[:-1] + gae(reward_TB, value_T1B, discount_TB, follows_TB, lambda_)


@torch.no_grad()
def expected_sarsa(
    reward_TB: Tensor,
    value_T1B: Tensor,
    taken_T1B: Tensor,
    discount_TB: Tensor,
    follows_TB: Tensor,
    lambda_: float | Tensor,
) -> Tensor:
    """Targets of the values of the actions taken: the mixture of n-step returns given by `lambda_`, each with the
    expectation over the actions that may follow (`value`) in place of the action that followed (`taken`)."""
    error_TB = reward_TB + discount_TB * value_T1B[1:] - taken_T1B[:-1]
    return taken_T1B[:-1] + sum_backwards(error_TB, lambda_ * discount_TB * follows_TB)


@torch.no_grad()
def upgo(reward_TB: Tensor, value_T1B: Tensor, discount_TB: Tensor, follows_TB: Tensor) -> Tensor:
    """Upgoing returns: follow the trajectory while it goes at least as well as expected. G[t] = r[t] + discount[t] *
    (G[t+1] if r[t+1] + discount[t+1] * V[t+2] >= V[t+1] else V[t+1])"""
    error_TB = temporal_differences(reward_TB, value_T1B, discount_TB)
    goes_up_TB = torch.ones_like(follows_TB)
    goes_up_TB[:-1] = error_TB[1:] >= 0
    return value_T1B[:-1] + sum_backwards(error_TB, discount_TB * follows_TB * goes_up_TB)


@dataclass(frozen=True, kw_only=True, slots=True)
class VTrace:
    """Off-policy corrected value targets, and advantages for the policy gradient, which include rho."""

    target: Tensor
    advantage: Tensor
    unweighted: Tensor
    """The advantage without the rho of its own decision, for losses that contain the ratio."""


@torch.no_grad()
def vtrace(
    log_ratio_TB: Tensor,
    reward_TB: Tensor,
    value_T1B: Tensor,
    discount_TB: Tensor,
    follows_TB: Tensor,
    *,
    rho_clip: float,
    c_clip: float,
    lambda_: float,
) -> VTrace:
    """`log_ratio` is log pi - log mu, of the learning policy and the acting one. Axes after [T, B] broadcast: a ratio
    [T, B, G] with everything else [T, B, 1] gives one correction per group of heads."""
    ratio_TB = log_ratio_TB.exp()
    rho_TB = ratio_TB.clamp(max=rho_clip)
    error_TB = temporal_differences(reward_TB, value_T1B, discount_TB)
    reach_TB = lambda_ * discount_TB * follows_TB
    correction_TB = sum_backwards(rho_TB * error_TB, reach_TB * ratio_TB.clamp(max=c_clip))
    after_TB = torch.zeros_like(correction_TB)
    after_TB[:-1] = correction_TB[1:]
    unweighted_TB = error_TB + reach_TB * after_TB
    return VTrace(target=value_T1B[:-1] + correction_TB, advantage=rho_TB * unweighted_TB, unweighted=unweighted_TB)


@torch.no_grad()
def advantage_columns(
    policy: Policy, batch: Batch, *, gamma: float, lambda_: float, normalise: bool, loss_has_ratio: bool = True
) -> dict[str, Tensor]:
    """`advantage` by GAE and `target` by TD(lambda), or by V-trace if the batch has a `LOG_RATIO` column; then
    `loss_has_ratio` says whether the loss multiplies by the decision's own ratio."""
    discount_TB = discounts(batch.elapsed[:-1], batch.over[:-1], gamma, batch.value.dtype)
    steps = (batch.reward[:-1], batch.value, discount_TB, batch.follows[:-1])
    decay = lambda_ if batch.idle is None else torch.where(batch.idle[:-1], 1.0, lambda_)
    advantage = torch.zeros_like(batch.value)
    if LOG_RATIO in batch.extra:
        log_ratio_TB = batch.extra[LOG_RATIO][:-1]
        corrected = vtrace(log_ratio_TB, *steps, rho_clip=1.0, c_clip=1.0, lambda_=lambda_)
        advantage[:-1] = corrected.unweighted if loss_has_ratio else corrected.advantage
        target = batch.value.clone()
        target[:-1] = corrected.target
    else:
        advantage[:-1] = gae(*steps, decay)
        target = batch.value + advantage
    update_value_scale(policy, target, batch.valid, batch.over_ranks)
    if normalise:
        advantage = standardise(advantage, batch.valid, batch.over_ranks)
    return {"advantage": advantage, "target": target}


MOST_CORRECTION = 20.0
"""Largest weight of the correction of an action's value: 1 / its probability, for options that are not very rare."""


@torch.no_grad()
def action_value_columns(policy: Policy, batch: Batch, *, gamma: float, lambda_: float) -> dict[str, Tensor]:
    """`advantages` of all options, the `target` of the action taken by expected SARSA(lambda), and `last.HEAD`, the
    log-probabilities. All are of the live weights, in one pass: the expectation of action values is that of the policy
    that they are weighed with. The critic's values are a baseline: that of the action taken is corrected by its target
    over its probability, so that with `lambda_` 1 the advantages have no bias however wrong the critic is."""

    def read(unrolled: Unrolled) -> dict[str, Tensor]:
        last = {f"last.{head}": log_p for head, log_p in unrolled.log_probs.items()}
        return {"value": unrolled.value, "values": _action_values(unrolled), **last}

    # Every row, because the row after the last decision is the bootstrap.
    columns = evaluate_rows(policy, batch, torch.ones_like(batch.valid), read)
    value, values = columns.pop("value"), columns.pop("values")
    (head,) = policy.kind.action.heads
    legal = is_legal(columns[f"last.{head}"])
    taken = _taken(values, batch)
    discount_TB = discounts(batch.elapsed[:-1], batch.over[:-1], gamma, value.dtype)
    decay = lambda_ if batch.idle is None else torch.where(batch.idle[:-1], 1.0, lambda_)
    target = taken.clone()
    target[:-1] = expected_sarsa(batch.reward[:-1], value, taken, discount_TB, batch.follows[:-1], decay)
    weight = (-batch.log_prob.squeeze(-1)).exp().clamp(max=MOST_CORRECTION)
    correction = torch.zeros_like(values).scatter(-1, _chosen(values, batch), (weight * (target - taken)).unsqueeze(-1))
    advantages = torch.where(legal, values - value.unsqueeze(-1) + correction, 0.0)
    return {"advantages": advantages, "target": target, **columns}


def taken_values(unrolled: Unrolled, batch: Batch) -> Tensor:
    """The critic's values of the actions taken."""
    return _taken(_action_values(unrolled), batch)


def _action_values(unrolled: Unrolled) -> Tensor:
    if unrolled.action_values is None:
        raise ValueError("algorithm.all_actions needs a critic that tells action values: set model.action_values=true")
    return unrolled.action_values


def _taken(values: Tensor, batch: Batch) -> Tensor:
    return values.gather(-1, _chosen(values, batch)).squeeze(-1)


def _chosen(values: Tensor, batch: Batch) -> Tensor:
    """[..., 1]: the options taken. Rows that are no decision may hold any number."""
    action: Tensor
    (action,) = batch.action.values()
    return action.long().clamp(0, values.shape[-1] - 1).unsqueeze(-1)

"""Every return against a scalar loop that is written straight from its formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ludus.algorithms.returns import discounts, expected_sarsa, gae, sum_backwards, td_lambda, upgo, vtrace


@dataclass(frozen=True)
class Columns:
    """Random trajectories with ends, truncations and delays."""

    reward: Tensor
    value: Tensor
    discount: Tensor
    follows: Tensor
    log_ratio: Tensor

    @property
    def steps(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.reward, self.value, self.discount, self.follows


def random_columns(seed: int, *, groups: int = 1) -> Columns:
    rng = np.random.default_rng(seed)
    T, B = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    over = rng.random((T, B)) < 0.2
    truncated = rng.random((T, B)) < 0.15
    elapsed = rng.integers(1, 4, (T, B))
    reward = torch.from_numpy(rng.normal(size=(T, B)))
    return Columns(
        reward=reward,
        value=torch.from_numpy(rng.normal(size=(T + 1, B))),
        discount=discounts(torch.from_numpy(elapsed), torch.from_numpy(over), 0.9, reward.dtype),
        follows=torch.from_numpy(~over & ~truncated),
        log_ratio=torch.from_numpy(rng.normal(size=(T, B, groups))),
    )


quick = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)
lambdas = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def test_discount_is_a_power_of_the_time_that_passed_and_zero_after_the_end() -> None:
    found = discounts(torch.tensor([1, 3, 2]), torch.tensor([False, False, True]), 0.5, torch.float64)
    assert found.tolist() == [0.5, 0.125, 0.0]
    assert found.dtype == torch.float64


@quick
@given(seeds, lambdas)
def test_gae_is_the_sum_of_discounted_errors(seed: int, lambda_: float) -> None:
    columns = random_columns(seed)
    reward, value, discount, follows = (column.numpy() for column in columns.steps)
    expected = np.zeros_like(reward)
    T, B = reward.shape
    for b in range(B):
        for t in range(T):
            weight, k = 1.0, t
            while True:
                error = reward[k, b] + discount[k, b] * value[k + 1, b] - value[k, b]
                expected[t, b] += weight * error
                if not follows[k, b] or k + 1 == T:
                    break
                weight *= lambda_ * discount[k, b]
                k += 1
    np.testing.assert_allclose(gae(*columns.steps, lambda_), expected, atol=1e-12)


@quick
@given(seeds, lambdas)
def test_td_lambda_mixes_the_target_and_the_value_of_the_next_decision(seed: int, lambda_: float) -> None:
    columns = random_columns(seed)
    reward, value, discount, follows = (column.numpy() for column in columns.steps)
    T, B = reward.shape
    expected = np.zeros_like(reward)
    for b in range(B):
        for t in reversed(range(T)):
            after = value[t + 1, b]
            if follows[t, b] and t + 1 < T:
                after = (1 - lambda_) * after + lambda_ * expected[t + 1, b]
            expected[t, b] = reward[t, b] + discount[t, b] * after
    np.testing.assert_allclose(td_lambda(*columns.steps, lambda_), expected, atol=1e-12)


@quick
@given(seeds)
def test_upgo_follows_the_played_future_while_it_goes_up(seed: int) -> None:
    columns = random_columns(seed)
    reward, value, discount, follows = (column.numpy() for column in columns.steps)
    T, B = reward.shape
    expected = np.zeros_like(reward)
    for b in range(B):
        for t in reversed(range(T)):
            after = value[t + 1, b]
            if follows[t, b] and t + 1 < T:
                one_step = reward[t + 1, b] + discount[t + 1, b] * value[t + 2, b]
                after = expected[t + 1, b] if one_step >= value[t + 1, b] else value[t + 1, b]
            expected[t, b] = reward[t, b] + discount[t, b] * after
    np.testing.assert_allclose(upgo(*columns.steps), expected, atol=1e-12)


def slow_vtrace(
    columns: Columns, group: int, rho_clip: float, c_clip: float, lambda_: float
) -> tuple[np.ndarray, np.ndarray]:
    """vs[t] = V[t] + sum over s >= t of (product of discount * c before s) * rho[s] * error[s]."""
    reward, value, discount, follows = (column.numpy() for column in columns.steps)
    ratio = np.exp(columns.log_ratio[..., group].numpy())
    rho, c = np.minimum(rho_clip, ratio), lambda_ * np.minimum(c_clip, ratio)
    T, B = reward.shape
    target, advantage = value[:-1].copy(), np.zeros_like(reward)
    for b in range(B):
        for t in range(T):
            weight, s = 1.0, t
            while True:
                error = reward[s, b] + discount[s, b] * value[s + 1, b] - value[s, b]
                target[t, b] += weight * rho[s, b] * error
                if not follows[s, b] or s + 1 == T:
                    break
                weight *= discount[s, b] * c[s, b]
                s += 1
        for t in range(T):
            after = value[t + 1, b]
            if follows[t, b] and t + 1 < T:
                after = lambda_ * target[t + 1, b] + (1 - lambda_) * after
            advantage[t, b] = rho[t, b] * (reward[t, b] + discount[t, b] * after - value[t, b])
    return target, advantage


@quick
@given(seeds, lambdas, st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 2.0]))
def test_vtrace(seed: int, lambda_: float, rho_clip: float, c_clip: float) -> None:
    columns = random_columns(seed)
    found = vtrace(columns.log_ratio[..., 0], *columns.steps, rho_clip=rho_clip, c_clip=c_clip, lambda_=lambda_)
    target, advantage = slow_vtrace(columns, 0, rho_clip, c_clip, lambda_)
    np.testing.assert_allclose(found.target, target, atol=1e-11)
    np.testing.assert_allclose(found.advantage, advantage, atol=1e-11)


@quick
@given(seeds)
def test_vtrace_corrects_each_group_of_heads_by_its_own_ratio(seed: int) -> None:
    columns = random_columns(seed, groups=3)
    grouped = (column[..., None] for column in columns.steps)
    found = vtrace(columns.log_ratio, *grouped, rho_clip=1.0, c_clip=1.0, lambda_=1.0)
    for group in range(3):
        target, advantage = slow_vtrace(columns, group, 1.0, 1.0, 1.0)
        np.testing.assert_allclose(found.target[..., group], target, atol=1e-11)
        np.testing.assert_allclose(found.advantage[..., group], advantage, atol=1e-11)


@quick
@given(seeds, lambdas)
def test_vtrace_of_the_acting_policy_is_gae(seed: int, lambda_: float) -> None:
    columns = random_columns(seed)
    on_policy = torch.zeros_like(columns.reward)
    found = vtrace(on_policy, *columns.steps, rho_clip=1.0, c_clip=1.0, lambda_=lambda_)
    expected = gae(*columns.steps, lambda_)
    torch.testing.assert_close(found.advantage, expected)
    torch.testing.assert_close(found.target, td_lambda(*columns.steps, lambda_))


def test_truncation_keeps_the_bootstrap_and_an_end_does_not() -> None:
    reward, value = (torch.tensor([[1.0, 1.0], [5.0, 5.0]]), torch.tensor([[0.0, 0.0], [10.0, 10.0], [0.0, 0.0]]))
    over = torch.tensor([[True, False], [False, False]])
    discount = discounts(torch.ones(2, 2), over, 1.0, torch.float32)
    follows = torch.tensor([[False, False], [True, True]])
    assert td_lambda(reward, value, discount, follows, 1.0)[0].tolist() == [1.0, 11.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_keep_the_dtype_and_carry_no_gradient(dtype: torch.dtype) -> None:
    value = torch.zeros(4, 2, dtype=dtype, requires_grad=True)
    steps = torch.ones(3, 2, dtype=dtype), value, torch.ones(3, 2, dtype=dtype), torch.ones(3, 2).bool()
    for found in (gae(*steps, 0.9), td_lambda(*steps, 0.9), upgo(*steps)):
        assert found.dtype == dtype
        assert not found.requires_grad


def test_sum_backwards_leaves_its_input_alone() -> None:
    errors = torch.ones(3, 1)
    assert sum_backwards(errors, torch.full((3, 1), 0.5)).flatten().tolist() == [1.75, 1.5, 1.0]
    assert errors.flatten().tolist() == [1.0, 1.0, 1.0]


@quick
@given(seeds, lambdas)
def test_expected_sarsa_mixes_n_step_returns_of_expectations(seed: int, lambda_: float) -> None:
    columns = random_columns(seed)
    taken = columns.value + torch.from_numpy(np.random.default_rng(seed + 1).normal(size=columns.value.shape))
    found = expected_sarsa(columns.reward, columns.value, taken, columns.discount, columns.follows, lambda_)
    T, B = columns.reward.shape
    for b in range(B):
        target = 0.0
        for t in reversed(range(T)):
            # What follows: the expectation, corrected by how much better than its own value the next action did.
            better = target - float(taken[t + 1, b]) if t + 1 < T and columns.follows[t, b] else 0.0
            after = float(columns.value[t + 1, b]) + lambda_ * better
            target = float(columns.reward[t, b]) + float(columns.discount[t, b]) * after
            assert float(found[t, b]) == pytest.approx(target)


def test_expected_sarsa_without_lambda_looks_one_step_ahead() -> None:
    columns = random_columns(3)
    found = expected_sarsa(columns.reward, columns.value, columns.value * 7, columns.discount, columns.follows, 0.0)
    torch.testing.assert_close(found, columns.reward + columns.discount * columns.value[1:])

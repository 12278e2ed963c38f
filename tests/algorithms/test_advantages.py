from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tabular_policy import TabularPolicy, random_batch

from ludus.algorithms.losses import critic_loss, value_loss
from ludus.algorithms.returns import advantage_columns, discounts, gae, td_lambda
from ludus.data.specs import Choice
from ludus.models.policy import ValueScale

HEADS = {"move": Choice(num=2)}


def test_columns_cover_all_rows_and_match_the_returns() -> None:
    policy = TabularPolicy(4, HEADS)
    batch = random_batch(policy, 6, 3)
    batch = replace(batch, value=torch.randn(7, 3, generator=torch.Generator().manual_seed(0)))
    found = advantage_columns(policy, batch, gamma=0.9, lambda_=0.8, normalise=False)
    discount = discounts(batch.elapsed[:-1], batch.over[:-1], 0.9, torch.float32)
    steps = batch.reward[:-1], batch.value, discount, batch.follows[:-1]
    torch.testing.assert_close(found["advantage"][:-1], gae(*steps, 0.8))
    torch.testing.assert_close(found["target"][:-1], td_lambda(*steps, 0.8))
    assert found["advantage"].shape == batch.value.shape


def test_normalised_advantages_leave_the_targets_alone() -> None:
    policy = TabularPolicy(4, HEADS)
    batch = random_batch(policy, 20, 5)
    plain = advantage_columns(policy, batch, gamma=1.0, lambda_=1.0, normalise=False)
    normalised = advantage_columns(policy, batch, gamma=1.0, lambda_=1.0, normalise=True)
    counted = normalised["advantage"][batch.valid]
    assert counted.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert counted.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(plain["target"], normalised["target"])


def test_the_value_scale_sees_the_targets_that_count() -> None:
    policy = TabularPolicy(4, HEADS, value_scale=ValueScale(decay=0.0))
    batch = random_batch(policy, 20, 5)
    target = advantage_columns(policy, batch, gamma=1.0, lambda_=1.0, normalise=False)["target"]
    assert policy.value_scale is not None
    torch.testing.assert_close(policy.value_scale.mean, target[batch.valid].mean())


def test_the_value_scale_is_left_alone_if_nothing_counts() -> None:
    policy = TabularPolicy(4, HEADS, value_scale=ValueScale(decay=0.0))
    batch = random_batch(policy, 3, 2)
    nothing = replace(batch, valid=torch.zeros_like(batch.valid))
    advantage_columns(policy, nothing, gamma=1.0, lambda_=1.0, normalise=True)
    assert policy.value_scale is not None
    assert policy.value_scale.mean.item() == 0.0


def test_critic_loss_is_in_units_of_the_value_scale() -> None:
    scale = ValueScale(decay=0.0)
    scale.update(torch.tensor([-10.0, 30.0]))
    value, target = torch.tensor([0.0, 20.0]), torch.tensor([20.0, 20.0])
    mask = torch.ones(2).bool()
    options = {"huber": 0.3, "clip": 0.5}
    found = critic_loss(
        TabularPolicy(1, HEADS, value_scale=scale), value, target, mask, old_value=value + 20.0, **options
    )
    expected = value_loss(value / 20.0, target / 20.0, old_value=value / 20.0 + 1.0, **options).mean()
    torch.testing.assert_close(found, expected)
    plain = critic_loss(TabularPolicy(1, HEADS), value, target, mask)
    torch.testing.assert_close(plain, value_loss(value, target).mean())

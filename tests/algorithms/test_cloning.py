"""Cloning: losses and accuracies against counts by hand, and recorded actions that no policy could take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.algorithms.cloning import OUTCOME, Cloning
from ludus.data.batch import Batch
from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.models.network_policy import ActorCritic, NetworkPolicy

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(
        parts={
            "self": Vector(size=4),
            "units": Entities(maximum=5, features=3),
            "map": Planes(channels=1, height=3, width=4),
        }
    ),
    action=ActionSpec(
        heads={
            "order": Choice(num=4),
            "units": Pointer(into="units", picks=3, when=When(head="order", values=(1, 2))),
            "target": Pointer(into="units", when=When(head="order", values=(2,))),
            "place": Point(height=3, width=4, when=When(head="order", values=(3,))),
        }
    ),
)
HEADS = list(KIND.action.heads)
ROWS = 60


def new_policy(**settings: Any) -> NetworkPolicy:
    policy = ActorCritic(hidden=(16,), **settings).build(KIND, seed=1)
    assert isinstance(policy, NetworkPolicy)
    return policy


def recorded_batch(policy: NetworkPolicy, seed: int = 0) -> Batch:
    """Single decisions as another policy made them, some of them not valid."""
    rng = np.random.default_rng(seed)
    length = rng.integers(2, 6, ROWS).astype(np.int32)
    observation = {
        "self": rng.standard_normal((ROWS, 4)).astype(np.float32),
        "units": rng.standard_normal((ROWS, 5, 3)).astype(np.float32),
        "units_length": length,
        "map": rng.standard_normal((ROWS, 1, 3, 4)).astype(np.float32),
    }
    real = np.arange(5) < length[:, None]
    legal = {"order": np.ones((ROWS, 4), np.bool_), "units": real, "target": real}
    teacher = ActorCritic(hidden=(16,)).build(KIND, seed=5)
    acted = teacher.act(observation, legal, {}, rng.random((ROWS, teacher.num_draws), dtype=np.float32))
    none = np.zeros(ROWS, np.float32)
    batch = Batch(
        observation=observation,
        legal=legal,
        action=acted.action,
        log_prob=np.zeros((ROWS, len(HEADS)), np.float32),
        value=none,
        reward=none,
        elapsed=none,
        over=none.astype(bool),
        valid=rng.random(ROWS) < 0.9,
        follows=none.astype(bool),
        first=none.astype(bool),
        version=none.astype(int),
        state={},
        extra={OUTCOME: rng.choice([-1.0, 0.0, 1.0], ROWS).astype(np.float32)},
    )
    return batch.map(torch.from_numpy)


def prepared(algorithm: Cloning, policy: NetworkPolicy, batch: Batch) -> Batch:
    return algorithm.prepare(policy, {}, batch)


def total(policy: NetworkPolicy, algorithm: Cloning, batch: Batch) -> float:
    return float(algorithm.loss(policy, prepared(algorithm, policy, batch)).total.detach())


def used_heads(order: int) -> dict[str, bool]:
    return {"order": True, "units": order in (1, 2), "target": order == 2, "place": order == 3}


def test_loss_and_accuracy_are_those_counted_by_hand() -> None:
    policy = new_policy()
    batch = recorded_batch(policy)
    weights = {"order": 1.0, "units": 0.5, "target": 1.0, "place": 2.0}
    algorithm = Cloning(head_weights={"units": 0.5, "place": 2.0}, value_weight=0.0)
    with torch.no_grad():
        loss = algorithm.loss(policy, prepared(algorithm, policy, batch))
        unrolled = policy.unroll(batch)
    expected, decisions = 0.0, 0
    right, made = dict.fromkeys(HEADS, 0), dict.fromkeys(HEADS, 0)
    rows, log_prob = dict.fromkeys(HEADS, 0), dict.fromkeys(HEADS, 0.0)
    for row in range(ROWS):
        if not batch.valid[row]:
            continue
        decisions += 1
        for index, head in enumerate(HEADS):
            if not used_heads(int(batch.action["order"][row]))[head]:
                continue
            options = unrolled.log_probs[head][row]
            action = batch.action[head][row]
            choices = [(options, action.flatten()[0])]
            if head == "units":
                picks = action.tolist()
                end = picks.index(-1) if -1 in picks else len(picks)
                choices = [(options[pick], picks[pick]) for pick in range(end)]
                if end < len(picks):
                    choices.append((options[end], options.shape[-1] - 1))
            rows[head] += 1
            for scores, chosen in choices:
                made[head] += 1
                right[head] += int(scores.argmax()) == chosen
                log_prob[head] += float(scores[chosen])
                expected -= weights[head] * float(scores[chosen])
            assert float(unrolled.log_prob[row, index]) == pytest.approx(
                sum(float(scores[chosen]) for scores, chosen in choices), abs=1e-5
            )
    assert float(loss.total) == pytest.approx(expected / decisions, rel=1e-5)
    measured = loss.measured()
    for head in HEADS:
        assert rows[head] > 3
        assert float(measured[f"accuracy.{head}"]) == pytest.approx(right[head] / made[head])
        assert float(measured[f"log_prob.{head}"]) == pytest.approx(log_prob[head] / rows[head], rel=1e-5)
    assert float(measured["impossible"]) == 0


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("order", 0),  # made illegal below
        ("order", 7),
        ("order", -1),
        ("units", [-1, -1, -1]),
        ("units", [0, 0, -1]),
        ("units", [4, -1, -1]),  # beyond the two units that there are
        ("units", [0, 9, -1]),
        ("target", 4),
    ],
)
def test_an_impossible_action_is_counted_and_not_trained_on(head: str, value: Any) -> None:
    policy = new_policy()
    algorithm = Cloning()
    batch = recorded_batch(policy)
    batch = replace(batch, valid=torch.ones(ROWS, dtype=torch.bool))
    batch.legal["order"][3, 0] = head != "order"
    batch.observation["units_length"][3] = 2
    for name in ("units", "target"):
        batch.legal[name][3, 2:] = False
    batch.action["order"][3], batch.action["units"][3] = 2, torch.tensor([1, 0, -1])
    batch.action["target"][3] = 0
    without = replace(batch, valid=torch.arange(ROWS) != 3)
    expected = total(policy, algorithm, without)

    batch.action[head][3] = torch.tensor(value)
    loss = algorithm.loss(policy, prepared(algorithm, policy, batch))
    assert total(policy, algorithm, batch) == pytest.approx(expected, rel=1e-6)
    assert float(loss.measured()["impossible"]) == 1


def test_what_an_unused_head_holds_does_not_matter() -> None:
    policy = new_policy()
    algorithm = Cloning()
    batch = recorded_batch(policy)
    batch.action["order"][:] = 0
    before = total(policy, algorithm, batch)
    batch.action["target"][:] = -1
    batch.action["place"][:] = 99
    measured = algorithm.loss(policy, prepared(algorithm, policy, batch)).measured()
    assert total(policy, algorithm, batch) == before
    assert float(measured["impossible"]) == 0
    assert measured["accuracy.place"].isnan()


def test_smoothed_labels_pull_towards_even_choices() -> None:
    policy = new_policy()
    batch = recorded_batch(policy)
    batch.action["order"][:] = 0
    scores = policy.unroll(batch).log_probs["order"].detach()
    valid = batch.valid
    expected = -(0.9 * scores[:, 0] + 0.1 * scores.mean(-1))[valid].mean()
    algorithm = Cloning(label_smoothing=0.1, value_weight=0.0)
    assert total(policy, algorithm, batch) == pytest.approx(float(expected), rel=1e-5)


def test_the_critic_learns_the_outcome_on_its_own_scale() -> None:
    policy = new_policy(separate_critic=True, value_normalisation=True)
    batch = recorded_batch(policy)
    algorithm = Cloning(value_weight=1.0)
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    errors = []
    for _ in range(60):
        loss = algorithm.loss(policy, prepared(algorithm, policy, batch))
        errors.append(float(loss.statistics["value_loss"]))
        optimiser.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert errors[-1] < 0.5 * errors[0]
    assert float(loss.measured()["explained_variance"]) > 0.5


def test_without_a_value_weight_the_critic_stays() -> None:
    policy = new_policy(separate_critic=True)
    algorithm = Cloning(value_weight=0.0)
    loss = algorithm.loss(policy, prepared(algorithm, policy, recorded_batch(policy)))
    loss.total.backward()  # type: ignore[no-untyped-call]
    touched = {name for name, one in policy.named_parameters() if one.grad is not None and one.grad.any()}
    assert touched
    assert not [name for name in touched if name.startswith("critic.")]


def test_a_wrong_head_is_named() -> None:
    with pytest.raises(ValueError, match="names 'unit'; the heads are order, units, target, place"):
        Cloning(head_weights={"unit": 2.0}).check([KIND])
    with pytest.raises(ValueError, match=r"head_weights.units must be at least 0"):
        Cloning(head_weights={"units": -1.0})

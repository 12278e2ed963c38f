"""Every algorithm learns which numbers to choose, given what it sees and an earlier choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm, Reference
from ludus.algorithms.cloning import Cloning, choices_of
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.data.specs import ActionSpec, Box, Choice, ObservationSpec, SeatKind, Vector, When
from ludus.models.continuous import BoxDistribution
from ludus.models.network_policy import ActorCritic, NetworkPolicy

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"seen": Vector(size=2)}),
    action=ActionSpec(
        heads={
            "act": Choice(num=2),
            "push": Box(size=2, low=(0.0, -1.0), high=(10.0, 1.0), when=When(head="act", values=(1,))),
        }
    ),
)
ROWS, UPDATES = 512, 80


def wanted(seen: np.ndarray) -> np.ndarray:
    """The first number has to be proportional to what is seen, the second at its upper bound."""
    return np.stack((5.0 + 4.0 * seen[:, 0], np.ones(len(seen))), -1)


def rewards(seen: np.ndarray, act: np.ndarray, push: np.ndarray) -> np.ndarray:
    """To act is worth up to 1, less the squared distance in units of half the range; not to act is worth nothing."""
    away = (push - wanted(seen)) / np.array([5.0, 1.0])
    return np.where(act == 1, 1.0 - (away**2).sum(-1), 0.0).astype(np.float32)


def play(policy: NetworkPolicy, rng: np.random.Generator, *, greedy: bool = False) -> Batch:
    """Episodes of one decision, as trajectories of one step."""
    seen = rng.uniform(-1.0, 1.0, (ROWS, 2)).astype(np.float32)
    legal = {"act": np.ones((ROWS, 2), np.bool_)}
    acted = policy.act({"seen": seen}, legal, {}, rng.random((ROWS, 3), np.float32), greedy=greedy)
    gained = rewards(seen, acted.action["act"], acted.action["push"])

    def two(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.stack((array, array)))

    yes = torch.ones(2, ROWS, dtype=torch.bool)
    valid = yes.clone()
    valid[1] = False
    return Batch(
        observation={"seen": two(seen)},
        legal={"act": two(legal["act"])},
        action={name: two(array) for name, array in acted.action.items()},
        log_prob=two(acted.log_prob),
        value=two(acted.value),
        reward=two(gained),
        elapsed=torch.ones(2, ROWS),
        over=yes,
        valid=valid,
        follows=~yes,
        first=yes,
        version=torch.zeros(2, ROWS, dtype=torch.int64),
        state={},
    )


@pytest.mark.parametrize(
    ("algorithm", "distribution"),
    [
        (PPO(entropy=0.001), "clipped"),
        (PPO(entropy=0.001), "squashed"),
        (PPO(entropy=0.001), "beta"),
        (PPO(entropy=0.001, ratio="per_head"), "clipped"),
        (A2C(entropy=0.001), "clipped"),
        (Impala(entropy=0.001), "clipped"),
        (MagnetPolicyGradient(magnet_weight=0.002, step_weight=0.05), "clipped"),
        (MagnetPolicyGradient(magnet=Reference(copy_every=5), magnet_weight=0.02, step_weight=0.05), "clipped"),
    ],
)
def test_algorithm_learns_numbers(algorithm: Algorithm, distribution: BoxDistribution) -> None:
    model = ActorCritic(hidden=(32,), box_distribution=distribution)
    policy, rng = model.build(KIND, seed=0), np.random.default_rng(0)
    references = {name: model.build(KIND, seed=0) for name in algorithm.references}
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    assert play(policy, rng, greedy=True).reward[0].mean() < 0.2
    epochs = 1 if isinstance(algorithm, A2C) else 4  # it corrects nothing, so each batch serves once
    updates = UPDATES * 4 // epochs
    for update in range(updates):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * (1.0 - update / updates)  # ever smaller steps, as the numbers become precise
        batch = algorithm.prepare(policy, references, play(policy, rng))
        if not algorithm.needs_sequences:
            batch = batch.rows(torch.arange(ROWS))
        for _ in range(epochs):
            optimiser.zero_grad()
            loss = algorithm.loss(policy, batch)
            torch.autograd.backward(loss.total)
            optimiser.step()
        for name, reference in algorithm.references.items():
            if reference.copy_every and update % reference.copy_every == 0:
                references[name].load_state_dict(policy.state_dict())
    assert play(policy, rng, greedy=True).reward[0].mean() > 0.95


@pytest.mark.parametrize("distribution", ["clipped", "squashed", "beta"])
def test_a_clone_learns_the_numbers_of_a_teacher(distribution: BoxDistribution) -> None:
    """Recorded actions, some of which lie on a bound, and one that no policy can take."""
    policy, rng = ActorCritic(hidden=(32,), box_distribution=distribution).build(KIND, seed=0), np.random.default_rng(0)
    batch = play(policy, rng)
    seen = batch.observation["seen"].numpy().reshape(-1, 2)
    act = (seen[:, 1] > 0).astype(np.int32).reshape(2, ROWS)
    push = wanted(seen).astype(np.float32).reshape(2, ROWS, 2)
    if distribution != "clipped":  # they never reach a bound
        push[..., 1] = 0.8
    push[0, 0] = np.nan
    act[0, 0] = 1
    batch.action["act"], batch.action["push"] = torch.from_numpy(act), torch.from_numpy(push)
    cloning = Cloning(value_weight=0.0)
    rows = cloning.prepare(policy, {}, batch).rows(torch.arange(ROWS))
    optimiser = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for step in range(300):
        for group in optimiser.param_groups:
            group["lr"] = 5e-3 * (1.0 - step / 300)
        optimiser.zero_grad()
        loss = cloning.loss(policy, rows)
        torch.autograd.backward(loss.total)
        optimiser.step()
    measured = loss.measured()
    assert measured["impossible"].item() == 1
    assert measured["accuracy.act"].item() > 0.97
    assert measured["accuracy.push"].item() > 0.9
    choices = choices_of(policy, policy.unroll(rows), rows)
    assert choices.made[:, 1].unique().tolist() == [0, 2]

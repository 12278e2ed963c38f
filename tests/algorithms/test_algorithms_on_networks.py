"""Every algorithm on the networks that ship: memory, entities, several picks, real numbers, normalised values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm, Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO, mappo
from ludus.algorithms.teacher import Teacher
from ludus.data.batch import Batch
from ludus.data.specs import ActionSpec, Box, Choice, Entities, ObservationSpec, Pointer, SeatKind, Vector, When
from ludus.data.trees import Array
from ludus.models.network_policy import ActorCritic, NetworkPolicy

KIND = SeatKind(
    name="player",
    observation=ObservationSpec(parts={"self": Vector(size=3), "units": Entities(maximum=4, features=2)}),
    action=ActionSpec(
        heads={
            "order": Choice(num=3),
            "targets": Pointer(into="units", picks=3, when=When(head="order", values=(1, 2))),
            "push": Box(size=2, low=0.0, high=(1.0, 5.0), when=When(head="order", values=(0, 2))),
        }
    ),
)
T, B = 5, 6


def played_batch(policy: NetworkPolicy) -> Batch:
    """Random observations, the policy's own actions and memory, an end and a truncation on the way."""
    rng = np.random.default_rng(0)
    state = policy.initial_state(B)
    rows: list[dict[str, Array]] = []
    start = {name: torch.from_numpy(array.copy()) for name, array in state.items()}
    for _ in range(T + 1):
        observation = {
            "self": rng.normal(size=(B, 3)).astype(np.float32),
            "units": rng.normal(size=(B, 4, 2)).astype(np.float32),
            "units_length": rng.integers(2, 5, B).astype(np.int32),
        }
        legal = {"order": np.ones((B, 3), bool), "targets": rng.random((B, 4)) < 0.5}
        legal["order"][::2, 0] = False
        legal["targets"][:, 0] = True
        acted = policy.act(observation, legal, state, rng.random((B, policy.num_draws)).astype(np.float32))
        state = acted.state
        rows.append(
            {f"observation.{name}": array for name, array in observation.items()}
            | {f"legal.{name}": array for name, array in legal.items()}
            | {f"action.{name}": array for name, array in acted.action.items()}
            | {"log_prob": acted.log_prob, "value": acted.value}
        )
    columns = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}

    nowhere = torch.zeros(T + 1, B, dtype=torch.bool)
    valid, follows = ~nowhere, ~nowhere
    valid[-1] = valid[2, 0] = False
    follows[1, 0] = follows[-1] = False  # row 2 of the first trajectory is a bootstrap after a truncation
    return Batch(
        observation=part("observation."),
        legal=part("legal."),
        action=part("action."),
        log_prob=columns["log_prob"],
        value=columns["value"],
        reward=torch.from_numpy(rng.normal(size=(T + 1, B)).astype(np.float32)),
        elapsed=torch.ones(T + 1, B),
        over=nowhere,
        valid=valid,
        follows=follows,
        first=nowhere,
        version=torch.zeros(T + 1, B, dtype=torch.int64),
        state=start,
    )


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(ratio="per_head", recompute_values=True),
        mappo(),
        A2C(),
        Impala(upgo_weight=1.0, ratio="per_head"),
        MagnetPolicyGradient(),
        MagnetPolicyGradient(magnet=Reference(decay=0.99)),
        PPO(teacher=Teacher(weight=0.5)),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_steps_on_one_batch_lower_its_loss(algorithm: Algorithm, memory: int) -> None:
    model = ActorCritic(hidden=(16,), memory=memory, entity_size=8, value_normalisation=True)
    policy = model.build(KIND, 0)
    references = {name: model.build(KIND, 1) for name in algorithm.references}
    batch = algorithm.prepare(policy, references, played_batch(policy))
    if not memory and not algorithm.needs_sequences:
        batch = batch.rows(batch.valid.flatten().nonzero()[:, 0])
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = algorithm.loss(policy, batch)
        losses.append(loss.total.item())
        assert all(value.isfinite() for value in loss.measured().values())
        optimiser.zero_grad()
        torch.autograd.backward(loss.total)
        assert all(weight.grad is None or weight.grad.isfinite().all() for weight in policy.parameters())
        optimiser.step()
    assert losses[-1] < losses[0]


def test_a_fresh_policy_is_as_far_from_itself_as_it_should_be() -> None:
    policy = ActorCritic(hidden=(16,), memory=8, entity_size=8).build(KIND, 0)
    algorithm = MagnetPolicyGradient(magnet=Reference(copy_every=1))
    batch = algorithm.prepare(policy, {"magnet": policy}, played_batch(policy))
    statistics = algorithm.loss(policy, batch).measured()
    assert statistics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert statistics["magnet_kl"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("algorithm", [PPO(), A2C(), Impala()], ids=lambda algorithm: type(algorithm).__name__)
def test_the_entropy_of_each_head_is_measured(algorithm: Algorithm) -> None:
    policy = ActorCritic(hidden=(16,), memory=8, entity_size=8).build(KIND, 0)
    batch = algorithm.prepare(policy, {}, played_batch(policy))
    measured = algorithm.loss(policy, batch).measured()
    shares = {head: measured[f"entropy.{head}"].item() for head in KIND.action.heads}
    assert 0.99 < shares["order"] <= 1.0 + 1e-6  # a fresh policy is close to uniform
    assert 0.1 < shares["targets"] <= 1.0 + 1e-6
    assert 0.9 < shares["push"] <= 1.0 + 1e-6
    with torch.no_grad():  # the first head becomes certain: only its own share falls
        policy.heads.heads[0].scores.bias[1] += 100.0  # legal in every row
    later = algorithm.loss(policy, batch).measured()
    assert later["entropy.order"].item() < 0.01
    assert later["entropy.targets"].item() == pytest.approx(shares["targets"])
    assert later["entropy.push"].item() == pytest.approx(shares["push"])


def test_one_head_has_all_of_the_entropy() -> None:
    kind = replace(KIND, action=ActionSpec(heads={"order": Choice(num=3)}))
    policy = ActorCritic(hidden=(16,)).build(kind, 0)
    batch = PPO().prepare(policy, {}, played_batch(policy))
    assert not any(name.startswith("entropy.") for name in PPO().loss(policy, batch).measured())

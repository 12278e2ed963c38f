"""Every algorithm solves a two-step problem with two heads, one of them not always in use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from tabular_policy import TabularPolicy
from torch import Tensor

from ludus.algorithms.actor_critic import A2C, Impala
from ludus.algorithms.algorithm import Algorithm, Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO, mappo
from ludus.data.batch import Batch
from ludus.data.schedules import Exponential, Linear
from ludus.data.specs import Choice, When
from ludus.models.policy import ValueScale

HEADS = {"move": Choice(num=2), "aim": Choice(num=3, when=When(head="move", values=(1,)))}
STEPS, TABLES = 8, 32


def play(policy: TabularPolicy, rng: np.random.Generator) -> Batch:
    """Move 1 leads from state 0 to state 2, where move 1 with aim 2 is worth 1; all else is worth nothing."""
    rows: list[Mapping[str, np.ndarray]] = []
    state = np.zeros(TABLES, np.int64)
    for _ in range(STEPS + 1):
        acted = policy.act({"state": state[:, None]}, {}, {}, rng.random((TABLES, 2)))
        ends, hit = state > 0, (acted.action["move"] == 1) & (acted.action["aim"] == 2)
        rows.append(
            {
                "state": state,
                **acted.action,
                "log_prob": acted.log_prob,
                "value": acted.value,
                "reward": ((state == 2) & hit).astype(np.float32),
                "over": ends,
            }
        )
        state = np.where(ends, 0, 1 + acted.action["move"])

    def column(name: str) -> Tensor:
        return torch.from_numpy(np.stack([row[name] for row in rows]))

    over = column("over")
    valid = torch.ones_like(over)
    valid[-1] = False
    return Batch(
        observation={"state": column("state")[..., None]},
        legal={},
        action={"move": column("move"), "aim": column("aim")},
        log_prob=column("log_prob"),
        value=column("value"),
        reward=column("reward"),
        elapsed=torch.ones(over.shape),
        over=over,
        valid=valid,
        follows=~over,
        first=column("state") == 0,
        version=torch.zeros_like(over),
        state={},
    )


@torch.no_grad()
def expected_return(policy: TabularPolicy) -> float:
    move, aim = (policy.logits[head].softmax(-1) for head in HEADS)
    return float(move[0, 1] * move[2, 1] * aim[2, 2])


def train(algorithm: Algorithm, policy: TabularPolicy, updates: int = 100) -> dict[str, Tensor]:
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.1)
    references = {name: TabularPolicy(3, HEADS) for name in algorithm.references}
    rng = np.random.default_rng(1)
    statistics: Mapping[str, Tensor] = {}
    for update in range(updates):
        batch = algorithm.prepare(policy, references, play(policy, rng))
        if algorithm.needs_sequences:
            parts = [batch, batch]
        else:
            order = torch.from_numpy(rng.permutation(STEPS * TABLES))
            parts = [batch.rows(index) for index in order.chunk(2)]
        for part in parts:
            loss = algorithm.loss(policy, part)
            optimiser.zero_grad()
            torch.autograd.backward(loss.total)
            optimiser.step()
            statistics = loss.measured()
        for name, reference in algorithm.references.items():
            if reference.copy_every and (update + 1) % reference.copy_every == 0:
                references[name].load_state_dict(policy.state_dict())
    return dict(statistics)


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(gamma=1.0),
        PPO(ratio="per_head", dual_clip=3.0, recompute_values=True, entropy=Linear(start=0.02, end=0.0)),
        mappo(),
        A2C(gamma=1.0),
        A2C(lambda_=0.95, normalise_advantage=True),
        Impala(gamma=1.0, entropy=0.002),
        Impala(ratio="per_head", lambda_=0.9, upgo_weight=1.0, entropy=0.002),
        MagnetPolicyGradient(magnet=Reference(copy_every=10), magnet_weight=0.05, step_weight=0.1),
        MagnetPolicyGradient(
            magnet_weight=Exponential(start=0.01, end=0.001), step_weight=0.1, reward_scale=2.0, clip=0.3
        ),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_algorithm_learns(algorithm: Algorithm) -> None:
    policy = TabularPolicy(3, HEADS)
    assert expected_return(policy) == pytest.approx(1 / 12)
    statistics = train(algorithm, policy)
    assert expected_return(policy) > 0.9
    assert {"policy_loss", "value_loss", "entropy", "kl", "explained_variance"} <= statistics.keys()
    assert all(value.isfinite() and not value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("algorithm", [mappo(), Impala()], ids=lambda algorithm: type(algorithm).__name__)
def test_algorithm_learns_with_normalised_values(algorithm: Algorithm) -> None:
    policy = TabularPolicy(3, HEADS, value_scale=ValueScale(decay=0.9))
    train(algorithm, policy)
    assert expected_return(policy) > 0.9
    assert policy.value_scale is not None
    assert policy.value_scale.mean.item() == pytest.approx(0.9, abs=0.15)

"""AlphaStar's loss on the networks that ship: memory, entities, several picks, further rewards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_algorithms_on_networks import KIND, B, T, played_batch

from ludus.algorithms.alphastar import AlphaStarGradient
from ludus.algorithms.losses import normalised_entropy
from ludus.algorithms.teacher import Teacher
from ludus.data.batch import Batch
from ludus.models.network_policy import ActorCritic, NetworkPolicy
from ludus.models.policy import Unrolled

REWARDED = replace(KIND, rewards=("build_order", "wood"))


def build(seed: int, memory: int = 0, separate_critic: bool = True) -> NetworkPolicy:
    model = ActorCritic(
        hidden=(16,), memory=memory, entity_size=8, value_normalisation=True, separate_critic=separate_critic
    )
    return model.build(REWARDED, seed)


def played(policy: NetworkPolicy) -> Batch:
    rng = np.random.default_rng(1)
    return replace(played_batch(policy), rewards=torch.from_numpy(rng.normal(size=(T + 1, B, 2))).float())


@pytest.mark.parametrize("memory", [0, 8])
def test_steps_on_one_batch_lower_its_loss(memory: int) -> None:
    policy, teacher = build(0, memory), build(1, memory)
    algorithm = AlphaStarGradient(teacher=Teacher(weight=0.1, heads={"targets": 0.01}), entropy=0.01)
    batch = algorithm.prepare(policy, {"teacher": teacher}, played(policy))
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = algorithm.loss(policy, batch)
        losses.append(loss.total.item())
        found = loss.measured()
        assert all(value.isfinite() for value in found.values())
        optimiser.zero_grad()
        torch.autograd.backward(loss.total)
        assert all(weight.grad is None or weight.grad.isfinite().all() for weight in policy.parameters())
        optimiser.step()
    assert losses[-1] < losses[0]
    expected = {"policy_loss.wood", "value_loss.build_order", "explained_variance.wood", "teacher_loss"}
    expected |= {"teacher_kl.order", "teacher_kl.targets", "entropy.targets", "clip_fraction.order"}
    assert expected < found.keys()


def test_policy_terms_leave_a_separate_critic_alone_and_the_other_way_round() -> None:
    policy = build(0)
    nothing = replace(AlphaStarGradient().main, policy=0.0, value=0.0)
    everything_off = AlphaStarGradient(
        main=nothing,
        rewards={"build_order": nothing, "wood": nothing},
        upgo=0.0,
        entropy=0.0,
        teacher=Teacher(weight=0.0),
    )

    def touched(**changes: object) -> set[bool]:
        algorithm = replace(everything_off, **changes)  # type: ignore[arg-type]
        batch = algorithm.prepare(policy, {"teacher": build(1)}, played(policy))
        policy.zero_grad()
        torch.autograd.backward(algorithm.loss(policy, batch).total)
        return {
            "critic" in name
            for name, weight in policy.named_parameters()
            if weight.grad is not None and weight.grad.abs().sum() > 0
        }

    assert touched() == set()
    assert touched(main=replace(nothing, value=1.0)) == {True}
    assert touched(rewards={"wood": replace(nothing, value=1.0)}) == {False, True}, "build_order counts too"
    assert touched(main=replace(nothing, policy=1.0)) == {False}
    assert touched(upgo=1.0) == touched(entropy=1.0) == touched(teacher=Teacher(weight=1.0)) == {False}


def test_the_teacher_remembers_nothing_of_the_player() -> None:
    policy, teacher = build(0, memory=8), build(1, memory=8)
    algorithm = AlphaStarGradient()
    batch = played(policy)
    rng = np.random.default_rng(0)
    elsewhere = replace(
        batch,
        state={name: torch.from_numpy(rng.normal(size=array.shape)).float() for name, array in batch.state.items()},
    )
    columns = [
        algorithm.prepare(policy, {"teacher": teacher}, one).extra["teacher.order"] for one in (batch, elsewhere)
    ]
    torch.testing.assert_close(*columns)
    torch.testing.assert_close(columns[0], teacher.unroll(batch).log_probs["order"].detach())
    assert not torch.equal(policy.unroll(batch).log_prob, policy.unroll(elsewhere).log_prob)


def test_a_player_is_no_distance_from_a_teacher_with_its_weights() -> None:
    policy = build(0, memory=8)
    algorithm = AlphaStarGradient(teacher=Teacher(weight=1.0))
    batch = algorithm.prepare(policy, {"teacher": policy}, played(policy))
    found = algorithm.loss(policy, batch).measured()
    assert found["teacher_loss"].item() == pytest.approx(0.0, abs=1e-6)
    assert found["kl"].item() == pytest.approx(0.0, abs=1e-6)


def test_without_a_teacher_there_is_no_copy_and_no_term() -> None:
    policy = build(0)
    algorithm = AlphaStarGradient(teacher=None)
    assert algorithm.references == {}
    found = algorithm.loss(policy, algorithm.prepare(policy, {}, played(policy))).measured()
    assert not any("teacher" in name for name in found)


def test_entropy_of_several_picks_is_their_mean() -> None:
    chances = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]]])
    lowest = torch.finfo(torch.float32).min
    log_probs = torch.where(chances > 0, chances.log(), lowest)
    unrolled = Unrolled(
        log_prob=torch.zeros(1, 1),
        entropy=torch.zeros(1, 1),
        value=torch.zeros(1),
        log_probs={"units": log_probs},
        in_use=torch.ones(1, 1, dtype=torch.bool),
    )
    second = 1.5 * np.log(2) / np.log(3)
    for action, expected in (([0, 1, -1], (1.0 + second + 0.0) / 3), ([0, -1, -1], (1.0 + second) / 2)):
        found = normalised_entropy(unrolled, ("units",), {"units": torch.tensor([action])})["units"]
        assert found.item() == pytest.approx(expected)

"""PPO with a teacher: by hand on a table, then on networks by single decisions and with memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tabular_policy import TabularPolicy, random_batch
from test_algorithms_on_networks import KIND, played_batch

from ludus.algorithms import algorithm as reference_columns
from ludus.algorithms.algorithm import Reference
from ludus.algorithms.ppo import PPO, mappo
from ludus.algorithms.teacher import EarlyGame, Teacher
from ludus.data.batch import Batch
from ludus.data.schedules import Linear
from ludus.data.specs import ActionSpec, Choice, ObservationSpec, SeatKind, Vector, When
from ludus.models.network_policy import ActorCritic, NetworkPolicy
from ludus.models.policy import Unrolled

HEADS = {"move": Choice(num=3), "aim": Choice(num=4, when=When(head="move", values=(1, 2)))}


def table(seed: int) -> TabularPolicy:
    policy = TabularPolicy(5, HEADS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return policy


def without_other_terms(teacher: Teacher) -> PPO:
    """Nothing else counts but the policy gradient."""
    return PPO(entropy=0.0, value_weight=0.0, teacher=teacher)


def term(algorithm: PPO, policy: TabularPolicy, batch: Batch) -> float:
    """What the teacher adds to the loss of a prepared batch."""
    without = replace(algorithm, teacher=None)
    return (algorithm.loss(policy, batch).total - without.loss(policy, batch).total).item()


def divergence(teacher: TabularPolicy, learner: TabularPolicy, batch: Batch, head: str) -> list[float]:
    """sum p log(p / q) with the teacher as p, of the valid rows; 0 where the head is not in use."""
    found = []
    for t, b in batch.valid.nonzero().tolist():
        state, move = int(batch.observation["state"][t, b, 0]), int(batch.action["move"][t, b])
        if head == "aim" and move not in (1, 2):
            found.append(0.0)
            continue
        legal = batch.legal[head][t, b] if head in batch.legal else torch.ones(HEADS[head].num).bool()
        p, q = (torch.softmax(one.logits[head][state][legal], -1) for one in (teacher, learner))
        found.append((p * (p / q).log()).sum().item())
    return found


def some_legal() -> dict[str, torch.Tensor]:
    legal = torch.from_numpy(np.random.default_rng(3).random((9, 4, 4)) < 0.6)
    legal[..., 1] = True
    return {"aim": legal}


def test_the_term_is_the_weighted_divergence_of_every_head() -> None:
    actor, learner, teacher = table(0), table(1), table(5)
    rule = Teacher(weight=0.3, heads={"aim": Linear(start=1.0, end=2.0)})
    algorithm = without_other_terms(rule)
    played = replace(random_batch(actor, 8, 4, legal=some_legal()), progress=0.5)
    batch = algorithm.prepare(learner, {"teacher": teacher}, played)
    move, aim = (divergence(teacher, learner, played, head) for head in HEADS)
    expected = 0.3 * np.mean(move) + 1.5 * np.mean(aim)
    assert term(algorithm, learner, batch) == pytest.approx(expected)
    found = algorithm.loss(learner, batch).measured()
    assert found["teacher_loss"].item() == pytest.approx(expected)
    assert found["teacher_kl.move"].item() == pytest.approx(np.mean(move))
    used = torch.isin(played.action["move"], torch.tensor([1, 2]))[played.valid].sum().item()
    assert found["teacher_kl.aim"].item() == pytest.approx(np.sum(aim) / used), "where the head is used"


def test_only_the_policy_gets_its_gradient() -> None:
    actor, learner, teacher = table(0), table(1), table(5)
    algorithm = without_other_terms(Teacher(weight=1.0))
    batch = algorithm.prepare(learner, {"teacher": teacher}, random_batch(actor, 8, 4, legal=some_legal()))
    assert not any(column.requires_grad for column in batch.extra.values())
    without = replace(algorithm, teacher=None)
    torch.autograd.backward(algorithm.loss(learner, batch).total - without.loss(learner, batch).total)
    for name, parameter in learner.named_parameters():
        grad = parameter.grad
        assert (grad is not None and bool(grad.abs().sum() > 0)) == (name != "values"), name
        assert grad is None or grad.isfinite().all()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_steps_along_the_gradient_lead_to_the_teacher() -> None:
    learner, teacher = table(1), table(5)
    algorithm = without_other_terms(Teacher(weight=100.0))
    batch = algorithm.prepare(learner, {"teacher": teacher}, random_batch(learner, 8, 16))
    optimiser = torch.optim.Adam(learner.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        loss = algorithm.loss(learner, batch)
        optimiser.zero_grad()
        torch.autograd.backward(loss.total)
        optimiser.step()
        losses.append(loss.statistics["teacher_loss"].item())
    assert losses[-1] < 0.01 * losses[0]


def test_early_in_the_game_counts_among_single_decisions_too() -> None:
    actor, learner, teacher = table(0), table(1), table(5)
    early = EarlyGame(part="state", most=1.0, strategy=None, weight=0.7)
    algorithm = without_other_terms(Teacher(weight=0.0, early=early))
    batch = algorithm.prepare(learner, {"teacher": teacher}, random_batch(actor, 8, 4))
    is_early = (batch.observation["state"][..., 0] <= 1)[batch.valid].tolist()
    moves = divergence(teacher, learner, batch, "move")
    expected = 0.7 * np.mean([kl * now for kl, now in zip(moves, is_early, strict=True)])
    rows = batch.rows(batch.valid.flatten().nonzero()[:, 0])
    assert 0 < sum(is_early) < len(is_early)
    assert term(algorithm, learner, batch) == pytest.approx(expected)
    assert term(algorithm, learner, rows) == pytest.approx(expected)


def test_the_teacher_is_a_fixed_reference_and_its_names_are_checked() -> None:
    assert PPO().references == {}
    PPO().check([table(0).kind])
    rule = Teacher(heads={"aim": 0.1, "mvoe": 0.1})
    assert mappo(teacher=rule).references == {"teacher": Reference(fixed=True)}
    with pytest.raises(ValueError, match=r"Teacher\.heads: 'mvoe'.*did you mean 'move'\?"):
        PPO(teacher=rule).check([table(0).kind])
    other = SeatKind(
        name="other",
        observation=ObservationSpec(parts={"state": Vector(size=1)}),
        action=ActionSpec(heads={"mvoe": Choice(num=2)}),
    )
    PPO(teacher=rule).check([table(0).kind, other])
    with pytest.raises(ValueError, match=r"EarlyGame\.part: 'clock' is not one of"):
        PPO(teacher=Teacher(early=EarlyGame(part="clock", most=1.0))).check([other])


def test_without_a_teacher_nothing_is_said_of_one() -> None:
    policy = table(0)
    found = PPO().loss(policy, PPO().prepare(policy, {}, random_batch(policy, 8, 4))).measured()
    assert not any("teacher" in name for name in found)


# --- on networks ---


def network(seed: int, memory: int = 0) -> NetworkPolicy:
    model = ActorCritic(hidden=(16,), memory=memory, entity_size=8, separate_critic=True)
    policy = model.build(KIND, seed)
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            if parameter.abs().max() < 0.1:  # last layers, which start small
                parameter.mul_(50.0)
    return policy


def test_single_decisions_give_the_same_loss_as_their_trajectories() -> None:
    """In whichever order a minibatch has them."""
    policy, teacher = network(0), network(1)
    algorithm = PPO(teacher=Teacher(weight=0.5, heads={"targets": 2.0}))
    batch = algorithm.prepare(policy, {"teacher": teacher}, played_batch(policy))
    thought = teacher.unroll(batch).log_probs
    for head in KIND.action.heads:
        found = batch.extra[f"teacher.{head}"]
        torch.testing.assert_close(found[batch.valid], thought[head][batch.valid].detach())
    flat = batch.flat()
    index = flat.valid.nonzero()[:, 0]
    shuffled = index[torch.from_numpy(np.random.default_rng(0).permutation(len(index)))]
    whole = algorithm.loss(policy, batch)
    single = algorithm.loss(policy, flat.pick(shuffled, all_valid=True))
    assert whole.statistics["teacher_loss"].item() > 0.01
    torch.testing.assert_close(single.total, whole.total)
    torch.testing.assert_close(single.measured(), whole.measured())


def test_a_large_batch_is_shown_to_the_teacher_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, teacher = network(0), network(1)
    algorithm, batch = PPO(teacher=Teacher()), played_batch(policy)
    at_once = algorithm.prepare(policy, {"teacher": teacher}, batch).extra
    monkeypatch.setattr(reference_columns, "MOST_ROWS", 7)
    asked, unroll = [], teacher.unroll

    def counted(rows: Batch) -> Unrolled:
        asked.append(len(rows.valid))
        return unroll(rows)

    monkeypatch.setattr(teacher, "unroll", counted)
    in_pieces = algorithm.prepare(policy, {"teacher": teacher}, batch).extra
    assert sum(asked) == int(batch.valid.sum())
    assert max(asked) == 7
    torch.testing.assert_close(in_pieces, at_once)


def test_minibatches_of_one_trajectory_keep_what_the_teacher_thinks_of_it() -> None:
    policy, teacher = network(0, memory=8), network(1, memory=8)
    algorithm = PPO(teacher=Teacher(weight=0.5))
    batch = algorithm.prepare(policy, {"teacher": teacher}, played_batch(policy))
    losses, counts = [], []
    for column in range(batch.valid.shape[1]):
        one = batch.columns(torch.tensor([column]))
        losses.append(algorithm.loss(policy, one).statistics["teacher_loss"].item())
        counts.append(int(one.valid.sum()))
    whole = algorithm.loss(policy, batch).statistics["teacher_loss"].item()
    assert whole > 0.001
    assert np.average(losses, weights=counts) == pytest.approx(whole, rel=1e-4)


def test_the_teacher_remembers_nothing_of_the_player() -> None:
    policy, teacher = network(0, memory=8), network(1, memory=8)
    batch, algorithm = played_batch(policy), PPO(teacher=Teacher())
    elsewhere = replace(batch, state={name: torch.ones_like(array) for name, array in batch.state.items()})
    columns = [
        algorithm.prepare(policy, {"teacher": teacher}, one).extra["teacher.order"] for one in (batch, elsewhere)
    ]
    torch.testing.assert_close(*columns)


@pytest.mark.parametrize("memory", [0, 8])
def test_a_player_is_no_distance_from_a_teacher_with_its_weights(memory: int) -> None:
    policy = network(0, memory)
    algorithm = PPO(teacher=Teacher(weight=1.0))
    batch = algorithm.prepare(policy, {"teacher": policy}, played_batch(policy))
    assert algorithm.loss(policy, batch).statistics["teacher_loss"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("memory", [0, 8])
def test_the_critic_gets_nothing_of_the_teacher(memory: int) -> None:
    policy, teacher = network(0, memory), network(1, memory)
    algorithm = without_other_terms(Teacher(weight=1.0))
    batch = algorithm.prepare(policy, {"teacher": teacher}, played_batch(policy))
    torch.autograd.backward(algorithm.loss(policy, batch).total)
    for name, parameter in policy.named_parameters():
        grad = parameter.grad
        assert "critic" not in name or grad is None or not bool(grad.abs().sum()), name
        assert grad is None or grad.isfinite().all(), name


def test_a_batch_in_which_nothing_counts_has_no_loss() -> None:
    policy, teacher = network(0), network(1)
    algorithm = PPO(teacher=Teacher(weight=1.0))
    played = played_batch(policy)
    batch = algorithm.prepare(policy, {"teacher": teacher}, replace(played, valid=torch.zeros_like(played.valid)))
    assert algorithm.loss(policy, batch).total.item() == 0.0

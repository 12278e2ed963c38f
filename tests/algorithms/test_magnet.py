"""The regularised gradient settles at the equilibrium that theory names, on exact expected gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tabular_policy import TabularPolicy, random_batch
from test_ppo import trained_policy

from ludus.algorithms.algorithm import Reference
from ludus.algorithms.losses import kl_categorical
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.data.batch import Batch
from ludus.data.schedules import Exponential
from ludus.data.specs import ActionSpec, Choice
from ludus.data.trajectory import SlotPool, TrajectoryLayout, TrajectoryWriter
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import allocate_actions
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.workers.exploitability import ExactGame

PENNIES = np.array([[1.0, -1.0], [-1.0, 1.0]])
BIASED = np.array([[3.0, -1.0], [-1.0, 1.0]])
"""Whose equilibrium is (1/3, 2/3) for both."""


def probabilities(policy: TabularPolicy) -> np.ndarray:
    found: np.ndarray = policy.logits["move"].softmax(-1).detach().numpy()
    return found


def matrix_game_batch(policy: TabularPolicy, payoff: np.ndarray) -> Batch:
    """Both seats (states 0 and 1) try both actions equally often, for their exact expected payoff.

    With the ratio to this even exploration, the expectation over the policy is exact: no noise.
    """
    row, column = probabilities(policy)
    reward = np.concatenate([payoff @ column, -payoff.T @ row, [0.0] * 4]).reshape(2, 4)
    top = torch.tensor([[True] * 4, [False] * 4])
    return Batch(
        observation={"state": torch.tensor([[0, 0, 1, 1]] * 2)[..., None]},
        legal={},
        action={"move": torch.tensor([[0, 1, 0, 1]] * 2)},
        log_prob=torch.full((2, 4, 1), 0.5, dtype=torch.float64).log(),
        value=policy.values.detach()[torch.tensor([[0, 0, 1, 1]] * 2)],
        reward=torch.from_numpy(reward),
        elapsed=torch.ones(2, 4),
        over=top,
        valid=top,
        follows=torch.zeros_like(top),
        first=top,
        version=torch.zeros(2, 4),
        state={},
    )


def settle(algorithm: MagnetPolicyGradient, payoff: np.ndarray, *, updates: int, gradient_steps: int = 3) -> np.ndarray:
    """Both seats' probabilities after playing against each other from a lopsided start."""
    policy = TabularPolicy(2, {"move": Choice(num=2)}, dtype=torch.float64)
    with torch.no_grad():
        policy.logits["move"].copy_(torch.tensor([[1.0, -0.5], [-1.0, 0.5]]))
    magnet = deepcopy(policy)
    optimiser = torch.optim.SGD(policy.parameters(), lr=0.5)
    for update in range(updates):
        batch = replace(matrix_game_batch(policy, payoff), progress=update / updates)
        batch = algorithm.prepare(policy, {"magnet": magnet}, batch)
        for _ in range(gradient_steps):
            optimiser.zero_grad()
            torch.autograd.backward(algorithm.loss(policy, batch).total)
            optimiser.step()
        if algorithm.magnet is not None and (update + 1) % algorithm.magnet.copy_every == 0:
            magnet.load_state_dict(policy.state_dict())
    return probabilities(policy)


def regularised_equilibrium(payoff: np.ndarray, weight: float) -> np.ndarray:
    """Each seat's policy is the softmax of its payoffs / weight: a damped fixed point."""
    row = column = np.full(2, 0.5)
    for _ in range(20_000):
        better = [np.exp(q / weight) for q in (payoff @ column, -payoff.T @ row)]
        row, column = (0.99 * old + 0.01 * new / new.sum() for old, new in zip((row, column), better, strict=True))
    return np.stack([row, column])


def test_matching_pennies_with_a_uniform_magnet_returns_to_uniform() -> None:
    found = settle(MagnetPolicyGradient(magnet_weight=0.5), PENNIES, updates=150)
    np.testing.assert_allclose(found, 0.5, atol=1e-3)


@pytest.mark.parametrize("step_weight", [0.0, 1.0])
def test_uniform_magnet_leads_to_the_equilibrium_of_the_regularised_game(step_weight: float) -> None:
    algorithm = MagnetPolicyGradient(magnet_weight=0.5, step_weight=step_weight)
    # Without the pull of the last policy, several steps on one batch would leave it behind.
    found = settle(algorithm, BIASED, updates=150 if step_weight else 200, gradient_steps=3 if step_weight else 1)
    expected = regularised_equilibrium(BIASED, 0.5)
    assert np.abs(expected - [1 / 3, 2 / 3]).max() > 0.02
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_scaling_rewards_and_magnet_alike_leaves_the_equilibrium_where_it_is() -> None:
    algorithm = MagnetPolicyGradient(magnet_weight=0.25, reward_scale=0.5)
    np.testing.assert_allclose(settle(algorithm, BIASED, updates=150), regularised_equilibrium(BIASED, 0.5), atol=1e-3)


def test_moving_magnet_leads_to_the_equilibrium_of_the_game_itself() -> None:
    algorithm = MagnetPolicyGradient(magnet=Reference(copy_every=20), magnet_weight=0.5)
    found = settle(algorithm, BIASED, updates=300)
    np.testing.assert_allclose(found, [[1 / 3, 2 / 3]] * 2, atol=1e-3)


def test_annealed_magnet_arrives_where_its_last_weight_leads() -> None:
    algorithm = MagnetPolicyGradient(magnet_weight=Exponential(start=1.0, end=0.3))
    found = settle(algorithm, BIASED, updates=150)
    np.testing.assert_allclose(found, regularised_equilibrium(BIASED, 0.3), atol=2e-3)


def test_divergences_are_exact_over_legal_options_and_heads_in_use() -> None:
    actor, learner, magnet = trained_policy(0), trained_policy(1), trained_policy(2)
    legal = {"move": torch.ones(9, 4, 3).bool(), "aim": torch.ones(9, 4, 4).bool()}
    legal["aim"][:, :2, 1] = False
    batch = random_batch(actor, 8, 4, legal=legal)
    algorithm = MagnetPolicyGradient(magnet=Reference(copy_every=1), magnet_weight=0.3, step_weight=0.7)
    prepared = algorithm.prepare(actor, {"magnet": magnet}, batch)
    now, last, far = learner.unroll(batch), actor.unroll(batch), magnet.unroll(batch)

    def expected(other: dict[str, torch.Tensor]) -> torch.Tensor:
        aiming = batch.action["move"] > 0
        kl = kl_categorical(now.log_probs["move"], other["move"])
        kl = kl + aiming * kl_categorical(now.log_probs["aim"], other["aim"])
        mean: torch.Tensor = kl[batch.valid].mean().detach()
        return mean

    loss = algorithm.loss(learner, prepared)
    torch.testing.assert_close(loss.statistics["kl"], expected(dict(last.log_probs)))
    torch.testing.assert_close(loss.statistics["magnet_kl"], expected(dict(far.log_probs)))
    plain = replace(algorithm, magnet_weight=0.0, step_weight=0.0).loss(learner, prepared)
    difference = 0.3 * loss.statistics["magnet_kl"] + 0.7 * loss.statistics["kl"]
    torch.testing.assert_close((loss.total - plain.total).detach(), difference)


def test_uniform_magnet_is_uniform_over_what_is_legal() -> None:
    policy = TabularPolicy(5, {"move": Choice(num=3)})
    legal = {"move": torch.tensor([True, False, True]).expand(9, 4, 3)}
    algorithm = MagnetPolicyGradient()
    batch = algorithm.prepare(policy, {}, random_batch(policy, 8, 4, legal=legal))
    statistics = algorithm.loss(policy, batch).measured()
    assert statistics["magnet_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert statistics["entropy"].item() == pytest.approx(np.log(2), abs=1e-6)


def test_only_what_is_needed_is_recorded() -> None:
    policy = trained_policy()
    batch = random_batch(policy, 4, 2)
    bare = MagnetPolicyGradient(step_weight=0.0)
    assert set(bare.prepare(policy, {}, batch).extra) == {"advantage", "target"}
    assert dict(bare.references) == {}
    moving = MagnetPolicyGradient(magnet=Reference(decay=0.99))
    extra = moving.prepare(policy, {"magnet": policy}, batch).extra
    assert set(extra) == {"advantage", "target", "last.move", "last.aim", "magnet.move", "magnet.aim"}
    assert dict(moving.references) == {"magnet": Reference(decay=0.99)}
    assert not any(column.requires_grad for column in extra.values())


def test_clip_limits_the_gain_and_is_counted() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    algorithm = MagnetPolicyGradient(clip=0.2)
    batch = algorithm.prepare(actor, {}, random_batch(actor, 8, 4))
    clipped, free = algorithm.loss(learner, batch), replace(algorithm, clip=None).loss(learner, batch)
    assert clipped.statistics["policy_loss"] > free.statistics["policy_loss"]
    assert clipped.measured()["clip_fraction"] > 0
    assert "clip_fraction" not in free.measured()


def test_rewards_are_scaled_once_however_often_a_batch_is_prepared() -> None:
    policy = TabularPolicy(5, {"move": Choice(num=3)})
    algorithm = MagnetPolicyGradient(reward_scale=0.25)
    once = algorithm.prepare(policy, {}, random_batch(policy, 8, 4))
    twice = algorithm.prepare(policy, {}, once)
    torch.testing.assert_close(once.extra["target"], twice.extra["target"])
    plain = MagnetPolicyGradient().prepare(policy, {}, once)
    torch.testing.assert_close(once.extra["target"], 0.25 * plain.extra["target"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"decay": 1.5}, "Reference.decay must be from 0 to 1, got 1.5"), ({"copy_every": -1}, "got -1")],
)
def test_a_reference_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reference(**changes)


def trained_by_all_actions(source: Kuhn, model: ActorCritic, *, updates: int) -> float:
    """NashConv after self-play on batches of whole games."""
    (kind,) = source.spec.kinds
    policy = model.build(kind, 0)
    algorithm = MagnetPolicyGradient(magnet_weight=Exponential(start=0.3, end=0.05), step_weight=5.0, all_actions=True)
    algorithm.check(source.spec.kinds)
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    exact = ExactGame(source.tree())
    for update in range(updates):
        batch = replace(played_games(source, policy, seed=update), progress=update / updates)
        batch = algorithm.prepare(policy, {}, batch)
        flat = batch.flat()
        rows = flat.pick(torch.nonzero(flat.valid).squeeze(1))
        for _ in range(4):
            optimiser.zero_grad()
            torch.autograd.backward(algorithm.loss(policy, rows).total)
            optimiser.step()
    return exact.nash_conv(exact.probabilities(policy))


def played_games(source: Kuhn, policy: Policy, *, seed: int, games: int = 256) -> Batch:
    """Self-play of Kuhn poker, one trajectory of two decisions at most per seat and game."""
    rng = np.random.default_rng(seed)
    tables = source.tables(games)
    tables.reset(np.arange(games), rng.integers(0, 2**63, games).astype(np.uint64))
    layout = TrajectoryLayout(kind=policy.kind, unroll_length=4)
    pool = SlotPool(layout, 2 * games)
    handed: list[int] = []
    writer = TrajectoryWriter(pool, 2 * games, lambda owner, slots: handed.extend(slots.tolist()))
    while not tables.view.over.all():
        at, seats = np.nonzero(tables.view.to_act)
        seen = {name: array[at, seats] for name, array in tables.view.observation[0].items()}
        legal = {name: array[at, seats] for name, array in tables.view.legal[0].items()}
        acted = policy.act(seen, legal, {}, rng.random((len(at), 1), np.float32))
        columns = {f"observation.{name}": array for name, array in seen.items()}
        columns |= {f"legal.{name}": array for name, array in legal.items()}
        columns |= {f"action.{name}": array for name, array in acted.action.items()}
        columns |= {"log_prob": acted.log_prob, "value": acted.value, "version": np.zeros(len(at), np.int64)}
        writer.record(2 * at + seats, columns, {})
        moves = allocate_actions(source.spec, games)
        moves[0]["move"][at, seats] = acted.action["move"]
        playing = ~tables.view.over
        tables.step(moves)
        ended = np.flatnonzero(tables.view.over & playing)
        streams = (2 * ended[:, None] + np.arange(2)).ravel()
        writer.credit(streams, tables.view.reward[ended].ravel())
        writer.end(streams)
    writer.flush(np.arange(2 * games), {})
    return pool.stack(np.array(handed)).map(torch.from_numpy)


def test_the_advantages_of_all_actions_have_no_bias_however_wrong_the_critic() -> None:
    source = Kuhn(critic_state=True)
    policy = ActorCritic(hidden=(16,), central_critic=True, action_values=True).build(source.spec.kinds[0], 3)
    with torch.no_grad():
        policy.critic.value.weight.mul_(3.0)
    exact = ExactGame(source.tree())
    probs = exact.probabilities(policy)
    batch = played_games(source, policy, seed=1, games=30_000)
    columns = MagnetPolicyGradient(all_actions=True).prepare(policy, {}, batch).extra
    for number, seen in enumerate(exact.tree.observations["information"]):
        if exact.tree.infostate_seat[number] or exact.tree.infostate_depth[number]:
            continue  # a later decision, whose histories are not equally likely
        better = []
        for move in range(2):
            probs_here = probs.copy()
            probs_here[number] = np.eye(2)[move]
            better.append(3.0 * exact.tree.values(probs_here)[0])  # it holds each of three cards equally often
        here = batch.valid & (batch.observation["information"] == torch.from_numpy(seen)).all(-1)
        found = columns["advantages"][here]
        difference = found[:, 1] - found[:, 0]
        error = float(difference.std()) / len(difference) ** 0.5
        assert error < 0.1
        assert abs(float(difference.mean()) - (better[1] - better[0])) < 4.0 * error


@pytest.mark.parametrize("central", [False, True])
def test_all_actions_learn_kuhn_poker(central: bool) -> None:
    model = ActorCritic(hidden=(32,), action_values=True, central_critic=central)
    assert trained_by_all_actions(Kuhn(critic_state=central), model, updates=100) < 0.45  # 0.917 at the start


def test_all_actions_say_what_they_need() -> None:
    source = Kuhn()
    policy = ActorCritic(hidden=(8,)).build(source.spec.kinds[0], 0)
    algorithm = MagnetPolicyGradient(all_actions=True)
    with pytest.raises(ValueError, match=r"set model\.action_values=true"):
        algorithm.prepare(policy, {}, played_games(source, policy, seed=0, games=4))
    two = ActionSpec(heads={"a": Choice(num=2), "b": Choice(num=2)})
    with pytest.raises(ValueError, match=r"algorithm\.all_actions needs an action of one Choice; kind 'seat' has a, b"):
        algorithm.check([replace(source.spec.kinds[0], name="seat", action=two)])
    with pytest.raises(ValueError, match="unset clip"):
        MagnetPolicyGradient(all_actions=True, clip=0.2)
    assert algorithm.recomputable == ()

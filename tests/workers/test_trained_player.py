"""One learning player: updates, what survives a stop, resets, and losses that are no numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from table_play import GAMES, self_play
from torch import Tensor

from ludus.algorithms.actor_critic import Impala
from ludus.algorithms.algorithm import Loss, Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.data.schedules import Linear
from ludus.data.trees import Tree
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import Diverged

CONFIG = LearnerConfig(batch_size=64, minibatch_size=32, epochs=3, buffer_size=64, learning_rate=0.01)
MODEL = ActorCritic(hidden=(8,), entity_size=4, value_normalisation=True)


def played(game: str = "connect_four", model: ActorCritic = MODEL) -> dict[int, Batch]:
    """Real trajectories, one batch per kind of seat."""
    play = self_play(GAMES[game], model=model).run(40)
    return {kind: play.joined(kind) for kind in range(len(play.pools))}


def new_player(algorithm: Any = None, model: ActorCritic = MODEL, **changes: Any) -> TrainedPlayer:
    play = self_play(GAMES["connect_four"], model=model)
    return TrainedPlayer("main", play.build(3), algorithm or PPO(), replace(CONFIG, **changes), seed=5)


def equal(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@dataclass(frozen=True)
class Spied:
    """Another algorithm, with its minibatches kept and its losses spoiled where `spoil` says so."""

    inner: Any = field(default_factory=PPO)
    spoil: Any = lambda call: 1.0
    seen: list[Batch] = field(default_factory=list)

    @property
    def needs_sequences(self) -> bool:
        return bool(self.inner.needs_sequences)

    @property
    def references(self) -> Mapping[str, Reference]:
        references: Mapping[str, Reference] = self.inner.references
        return references

    def prepare(self, policy: Policy, references: Mapping[str, Policy], batch: Batch) -> Batch:
        prepared: Batch = self.inner.prepare(policy, references, batch)
        return prepared

    def loss(self, policy: Policy, batch: Batch) -> Loss:
        self.seen.append(batch)
        loss: Loss = self.inner.loss(policy, batch)
        return replace(loss, total=loss.total * self.spoil(len(self.seen)))


def test_an_update_changes_weights_and_counters() -> None:
    player, batches = new_player(), played()
    before = player.weights()
    statistics = player.update(batches, 0.0)
    valid = sum(int(batch.valid.sum()) for batch in batches.values())
    assert not equal(before, player.weights())
    assert (player.step, player.decisions, player.skipped) == (1, valid, 0)
    assert str(player.model) == "main:0:1"
    assert {"policy_loss", "value_loss", "entropy", "learning_rate", "lag"} <= statistics.keys()


def test_every_tenth_update_compares_live_and_averaged_weights() -> None:
    batches = played()
    for rate, differs in ((0.0, False), (1e-2, True)):
        player = new_player(learning_rate=rate)
        found = {step: player.update(batches, 0.0).get("average_kl") for step in range(31)}
        assert [step for step, distance in found.items() if distance is not None] == [10, 20, 30]
        assert all((found[step] or 0.0) > 1e-6 for step in (10, 20, 30)) == differs
    player.reset(player.weights(), incarnation=1)
    assert "average_kl" not in player.update(batches, 0.0), "the average has only begun"


def test_a_policy_that_gives_all_positions_the_same_distribution_is_measured() -> None:
    """Beside a value that still distinguishes them."""
    batches, player = played(), new_player(learning_rate=0.0)
    found = [player.update(batches, 0.0).get("constant_policy") for step in range(11)]
    assert found == [0.0, *[None] * 9, 0.0]
    weights = player.weights()
    [name] = [name for name in weights if name.endswith("scores.weight")]
    player.reset({**weights, name: np.zeros_like(weights[name])}, incarnation=1)
    assert {player.update(batches, 0.0).get("constant_policy") for step in range(11)} == {None, 1.0}


def test_details_are_measured_in_the_last_pass_only() -> None:
    measured: list[float] = []

    @dataclass(frozen=True)
    class Detailed(Spied):
        def loss(self, policy: Policy, batch: Batch) -> Loss:
            def details() -> dict[str, Tensor]:
                measured.append(len(self.seen))
                return {"detail": torch.tensor(float(len(self.seen)))}

            return replace(super().loss(policy, batch), details=details)

    spied = Detailed()
    statistics = new_player(spied).update(played(), 0.0)
    parts = len(spied.seen) // CONFIG.epochs
    assert measured == list(range(len(spied.seen) - parts + 1, len(spied.seen) + 1))
    assert statistics["detail"] == pytest.approx(np.mean(measured))


def test_every_decision_is_seen_once_per_epoch() -> None:
    algorithm = Spied()
    player, batches = new_player(algorithm), played()
    player.update(batches, 0.0)
    valid = batches[0].valid
    parts = round(int(valid.sum()) / CONFIG.minibatch_size)
    assert parts > 1
    assert len(algorithm.seen) == CONFIG.epochs * parts
    stamps = batches[0].observation["stamp"][valid].ravel().tolist()
    for epoch in range(CONFIG.epochs):
        seen = algorithm.seen[epoch * parts : (epoch + 1) * parts]
        assert all(bool(batch.valid.all()) for batch in seen)
        assert sorted(stamp for batch in seen for stamp in batch.observation["stamp"].ravel().tolist()) == sorted(
            stamps
        )


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [(PPO(), replace(MODEL, memory=4)), (Impala(), MODEL)],
    ids=["the policy remembers", "the algorithm asks for it"],
)
def test_whole_trajectories_where_they_are_needed(algorithm: Any, model: ActorCritic) -> None:
    spied = Spied(algorithm)
    player, batches = new_player(spied, model), played(model=model)
    player.update(batches, 0.0)
    columns = batches[0].valid.shape[1]
    assert all(batch.valid.ndim == 2 and len(batch.valid) == 5 for batch in spied.seen)
    assert sum(batch.valid.shape[1] for batch in spied.seen) == CONFIG.epochs * columns
    assert all(len(array) == batch.valid.shape[1] for batch in spied.seen for array in batch.state.values())


def test_kinds_of_seat_share_a_step() -> None:
    play = self_play(GAMES["siege"], model=MODEL).run(60)
    batches = {kind: play.joined(kind) for kind in (0, 1)}
    player = TrainedPlayer("main", play.build(3), PPO(), CONFIG, seed=5)
    before = player.weights()
    player.update(batches, 0.0)
    after = player.weights()
    assert {name.split("/")[0] for name in after if not np.array_equal(before[name], after[name])} == {
        "attacker",
        "defender",
    }
    assert player.decisions == sum(int(batch.valid.sum()) for batch in batches.values())


def test_the_learning_rate_follows_its_schedule() -> None:
    player, batches = new_player(learning_rate=Linear(start=0.5, end=0.0)), played()
    assert player.update(batches, 0.5)["learning_rate"] == pytest.approx(0.25)
    before = player.weights()
    player.update(batches, 1.0)
    learned = {name: array for name, array in player.weights().items() if "value_scale" not in name}
    assert equal(learned, {name: before[name] for name in learned}), "at a rate of 0 nothing is learned"


@pytest.mark.parametrize("spoiler", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_skipped_and_counted(spoiler: float) -> None:
    spied = Spied(spoil=lambda call: spoiler)
    player, batches = new_player(spied), played()
    before, (saved, _) = player.weights(), player.save()
    player.update(batches, 0.0)
    assert player.skipped == len(spied.seen) > 0
    assert equal(_without_scale(before), _without_scale(player.weights()))
    after, _ = player.save()
    assert {n for n in after if n.startswith("optimiser.")} == {n for n in saved if n.startswith("optimiser.")}


def test_steps_around_a_broken_one_are_taken() -> None:
    good = Spied()
    broken = Spied(spoil=lambda call: float("nan") if call == 2 else 1.0)
    batches = played()
    reference, player = new_player(good), new_player(broken)
    reference.update(batches, 0.0)
    player.update(batches, 0.0)
    assert (reference.skipped, player.skipped) == (0, 1)
    assert not equal(reference.weights(), player.weights())
    assert all(np.isfinite(array).all() for array in player.weights().values())


def _without_scale(weights: Tree) -> Tree:
    return {name: array for name, array in weights.items() if "value_scale" not in name}


@pytest.mark.parametrize("memory", [0, 4])
def test_a_batch_in_which_all_is_too_old_teaches_nothing(memory: int) -> None:
    model = replace(MODEL, memory=memory)
    batches = {kind: replace(one, valid=one.valid & False) for kind, one in played(model=model).items()}
    player = new_player(model=model)
    before = player.weights()
    player.update(batches, 0.0)
    assert (player.decisions, player.skipped) == (0, 0)
    assert equal(before, player.weights())


def test_lag_is_the_mean_age_of_what_was_trained_on() -> None:
    batch = played()[0]
    version = np.where(np.arange(batch.version.shape[1]) % 2, 6, 4) + 0 * batch.version
    player = new_player(schedule="async", max_lag=10)
    player.step = 6
    statistics = player.update({0: replace(batch, version=version)}, 0.0)
    assert statistics["lag"] == pytest.approx(float((6 - version)[batch.valid].mean()))
    assert statistics["max_lag"] == 2.0
    shares = [statistics[f"lag_share.{age}"] for age in range(11)]
    newest = float((version == 6)[batch.valid].mean())
    assert shares == pytest.approx([newest, 0.0, 1.0 - newest, *[0.0] * 8])
    assert player.oldest_version == 7 - 10


@pytest.mark.parametrize(
    "algorithm",
    [PPO(), MagnetPolicyGradient(magnet=Reference(copy_every=2)), MagnetPolicyGradient(magnet=Reference(decay=0.9))],
    ids=["ppo", "copied magnet", "following magnet"],
)
def test_it_goes_on_exactly_from_what_it_saved(algorithm: Any) -> None:
    batches = played()
    player, other = new_player(algorithm), new_player(algorithm)
    for _ in range(3):
        player.update(batches, 0.1)
    arrays, facts = player.save()
    other.load(arrays, facts)
    for one in (player, other):
        one.update(batches, 0.2)
    (arrays, facts), (other_arrays, other_facts) = player.save(), other.save()
    assert equal(arrays, other_arrays)
    assert facts == other_facts
    assert equal(player.average_weights(), other.average_weights())
    assert not equal(player.average_weights(), player.weights())


def test_references_follow_as_the_algorithm_asks() -> None:
    batches = played()
    copied = new_player(MagnetPolicyGradient(magnet=Reference(copy_every=2)))
    start = copied.weights()

    def magnet(player: TrainedPlayer) -> Tree:
        arrays, _ = player.save()
        prefix = "reference.magnet.0."
        return {
            f"player/{name.removeprefix(prefix)}": array for name, array in arrays.items() if name.startswith(prefix)
        }

    copied.update(batches, 0.0)
    assert equal(magnet(copied), start)
    copied.update(batches, 0.0)
    assert equal(magnet(copied), copied.weights())
    following = new_player(MagnetPolicyGradient(magnet=Reference(decay=0.75)))
    following.update(batches, 0.0)
    for name, array in magnet(following).items():
        wanted = 0.75 * start[name] + 0.25 * following.weights()[name]
        np.testing.assert_allclose(array, wanted, atol=1e-6)


def test_a_reset_begins_again_from_the_weights_it_is_given() -> None:
    batches = played()
    player = new_player(schedule="async", max_lag=2)
    start = player.weights()
    player.update(batches, 0.0)
    player.update(batches, 0.0)
    player.reset(start, incarnation=1)
    assert equal(player.weights(), start)
    assert equal(player.average_weights(), start)
    assert not any(name.startswith("optimiser.") for name in player.save()[0])
    assert (player.incarnation, player.step) == (1, 5)
    assert player.oldest_version > 2, "what the old weights played is never trained on"


def test_the_order_of_minibatches_depends_on_the_seed_only() -> None:
    batches = played()
    players = [TrainedPlayer("main", new_player().policies, PPO(), CONFIG, seed=seed) for seed in (1, 1, 2)]
    for player in players:
        player.update(batches, 0.0)
    assert equal(players[0].weights(), players[1].weights())
    assert not equal(players[0].weights(), players[2].weights())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"buffer_size": 10}, r"buffer_size \(10\) must hold a batch of batch_size \(64\)"),
        ({"average_decay": 1.0}, r"average_decay must be in \[0, 1\), got 1.0"),
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be above 0, got 0.0"),
        ({"adam_beta1": 1.0}, r"adam_beta1 must be in \[0, 1\), got 1.0"),
        ({"adam_epsilon": 0.0}, "adam_epsilon must be above 0, got 0.0"),
        ({"learning_rate": -1e-3}, "learning_rate must be at least 0 and finite, got -0.001"),
        ({"learning_rate": Linear(start=1e-3, end=-1.0)}, "learning_rate must be at least 0 and finite"),
        ({"max_lag": -1}, "max_lag must be at least 0, got -1"),
        ({"schedule": "later"}, r"schedule is 'later', not one of \['sync', 'async'\]"),
        ({"reuse": 0}, "reuse must be at least 1, got 0"),
        ({"schedule": "async", "reuse": 3}, r"reuse \(3\) can be at most max_lag \+ 1 \(2\)"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_gradients_are_clipped() -> None:
    player = new_player(Spied(spoil=lambda call: 1e3), max_gradient_norm=1e-3)
    player.update(played(), 0.0)
    moments = [array for name, array in player.save()[0].items() if name.endswith("exp_avg")]
    norm = float(np.sqrt(sum((array**2).sum() for array in moments)))
    assert 0 < norm <= 1e-3 + 1e-6, "the first moment averages gradients, none of which is longer"


def test_every_preparation_and_every_gradient_step_is_a_sign_of_life() -> None:
    player, batches = new_player(), played()
    signs: list[int] = []
    player.show_life = lambda: signs.append(player.step)
    steps = player.update(batches, 0.0)["gradient_steps"]
    assert steps > CONFIG.epochs
    assert len(signs) == len(batches) + steps


@pytest.mark.parametrize("rate", [1e3, 1e6, 1e30])
def test_an_update_that_blows_the_weights_up_raises(rate: float) -> None:
    player = new_player(learning_rate=rate)
    with pytest.raises(
        Diverged, match=re.escape(f"the weights of main grew in one update with learning rate {rate:g}")
    ):
        player.update(played(), 0.0)
    assert player.step == 0, "what is published is the update before"


def test_weights_that_grow_in_many_updates_raise() -> None:
    player, batches = new_player(learning_rate=0.0), played()
    for _ in range(3):
        player.update(batches, 0.0)
        for parameter in player.optimiser.parameters:
            parameter.data *= 6.0
    with pytest.raises(Diverged, match="the weights of main have grown with learning rate 0 from a mean size of 0"):
        player.update(batches, 0.0)


def test_a_network_that_no_longer_sees_its_input_raises() -> None:
    """As after a step that saturates all its units."""
    player, batches = new_player(learning_rate=0.0), played()
    player.update(batches, 0.0)
    for name, parameter in player.policies[0].named_parameters():
        if "trunk" in name:
            parameter.data[...] = 0.0
    with pytest.raises(Diverged, match=r"it gives every position the value .*, which it did not before"):
        player.update(batches, 0.0)


def test_a_network_that_never_saw_its_input_goes_on() -> None:
    """In a game that shows every seat the same, all values are one."""
    player = new_player(learning_rate=0.01)
    batches = {kind: replace(batch, value=np.zeros_like(batch.value)) for kind, batch in played().items()}
    batches = {
        kind: replace(batch, observation={name: np.zeros_like(one) for name, one in batch.observation.items()})
        for kind, batch in batches.items()
    }
    for _ in range(3):
        player.update(batches, 0.0)
    assert player.step == 3


def test_values_of_several_versions_are_no_sign_that_the_network_saw_more() -> None:
    """In a game that shows every seat the same, a batch has values of weights from before and after an update."""
    player = new_player(learning_rate=0.01)
    for _ in range(3):
        batches = {
            kind: replace(
                batch,
                observation={name: np.zeros_like(one) for name, one in batch.observation.items()},
                value=np.where(np.arange(batch.value.shape[1]) % 2, batch.value * 0, batch.value * 0 + 0.1),
            )
            for kind, batch in played().items()
        }
        player.update(batches, 0.0)
    assert player.step == 3

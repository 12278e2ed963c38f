"""The learner: batches become versions, and every decision that is not trained on is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from broken_games import Flickering, Paying
from stamped_games import number_of
from table_play import GAMES, SMALL, side
from taught_play import TaughtPlay, taught_self_play

from ludus.data.batch import Batch
from ludus.data.records import LearnerProgress, ModelId, PlayerReset
from ludus.games.lift import Lifted
from ludus.models.network_policy import ActorCritic
from ludus.workers.buffer import Buffer
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import IDLE


def waiting(play: TaughtPlay) -> int:
    return sum(buffer.decisions for buffer in play.learner.buffers.values())


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("game", ["kuhn", "connect_four", "siege", "hills"])
def test_every_decision_is_trained_on_or_counted(game: str) -> None:
    play = taught_self_play(GAMES[game])
    play.train(120)
    main = play.learner.players["main"]
    assert main.step > 4
    dropped = play.learner.buffers["main"].dropped
    assert play.made["main"] == main.decisions + main.stale + main.refused + dropped + waiting(play)
    assert main.refused == dropped == 0
    for pool, writer in zip(play.pools, play.actor.recorder.writers, strict=True):
        held = int((writer.slot >= 0).sum())
        in_buffer = pool.num_slots - writer.num_free - held
        assert (in_buffer > 0) <= (waiting(play) > 0), "slots that were trained on are free again"


def test_an_update_publishes_a_version_and_says_what_it_measured() -> None:
    play = taught_self_play(GAMES["connect_four"])
    said = [progress for progress in play.train(80) if progress is not IDLE]
    main = play.learner.players["main"]
    assert play.board.newest("main") == ModelId("main", 0, main.step) == main.model
    assert equal(play.board.fetch("main")[1], main.weights())
    assert sum(progress.count for progress in said) == main.decisions == play.learner.decisions
    assert len(said) == main.step
    assert {"main/policy_loss", "main/lag", "main/stale", "main/refused", "main/dropped"} <= said[-1].statistics.keys()
    assert play.learner.progress == main.decisions / 10_000


@pytest.mark.parametrize("game", ["connect_four", "siege"])
def test_with_no_lag_allowed_all_that_is_trained_on_is_new(game: str) -> None:
    play = taught_self_play(GAMES[game])
    said = play.train(120)
    lags = [progress.statistics["main/lag"] for progress in said if progress is not IDLE]
    assert len(lags) > 4
    assert set(lags) == {0.0}
    assert play.learner.players["main"].stale > 0, "open decisions of seats that wait are of older weights"


def test_with_lag_allowed_nothing_is_stale() -> None:
    config = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=200, schedule="async", max_lag=5)
    play = taught_self_play(GAMES["connect_four"], config=config)
    said = play.train(120)
    assert max(progress.statistics["main/lag"] for progress in said if progress is not IDLE) > 0
    assert play.learner.players["main"].stale == 0


class Recorded:
    """Which decisions of a player each update trains on, by their stamps."""

    def __init__(self, trained: TrainedPlayer) -> None:
        self.updates: list[list[float]] = []
        self._update = trained.update
        trained.update = self  # type: ignore[method-assign, assignment]

    def __call__(
        self, batches: Mapping[int, Batch], progress: float, elsewhere: Mapping[int, Batch]
    ) -> dict[str, float]:
        self.updates.append(
            [
                float(stamp)
                for batch in batches.values()
                for stamp in number_of(batch.observation["stamp"][..., 0][batch.valid])
            ]
        )
        return self._update(batches, progress, elsewhere)

    @property
    def uses(self) -> Counter[float]:
        return Counter(stamp for update in self.updates for stamp in update)


@pytest.mark.parametrize("reuse", [1, 2, 3])
def test_asynchronous_updates_use_what_waits_within_the_bounds(reuse: int) -> None:
    config = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=200, schedule="async", max_lag=2, reuse=reuse)
    play = taught_self_play(GAMES["connect_four"], config=config, hand_over_after=25)
    recorded = Recorded(play.learner.players["main"])
    said = [progress for progress in play.train(200) if progress is not IDLE]
    main, buffer = play.learner.players["main"], play.learner.buffers["main"]
    uses = recorded.uses
    assert max(uses.values()) == reuse
    assert main.decisions == sum(uses.values()), "each use counts"
    assert 0 < max(progress.statistics["main/max_lag"] for progress in said) <= 2
    unused = play.made["main"] - len(uses) - main.stale - main.refused - buffer.dropped
    assert 0 <= unused <= waiting(play)
    assert reuse > 1 or unused == waiting(play)


def test_what_is_older_than_the_bound_is_refused_and_counted() -> None:
    config = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=200, schedule="async", max_lag=1)
    play = taught_self_play(GAMES["connect_four"], config=config)
    main = play.learner.players["main"]
    for _ in range(30):
        play.actor.step()
    before = waiting(play)
    assert before > 0
    main.step += 2
    assert play.learner.step() is IDLE
    assert main.stale == before
    assert waiting(play) == 0


def test_actors_that_wait_for_different_players_do_not_wait_for_ever() -> None:
    line_up = (side("main", trains=True), side("rival", trains=True))
    play = TaughtPlay(GAMES["connect_four"], [line_up], hand_over_after=10**6)
    pool, half = play.pools[0], play.pools[0].num_slots // 2
    buffers = play.learner.buffers
    for player in buffers:
        buffers[player] = Buffer(
            play.pools, max_decisions=1000, max_slots=1000, free=play.actor.recorder.free, num_actors=2
        )
    while not all(buffer.decisions for buffer in buffers.values()):
        play.actor.step()
    moved = buffers["rival"].take()[0].slots
    for array in (*pool.rows.values(), *pool.slots.values()):
        array[half + moved] = array[moved]
    buffers["rival"].put(0, half + moved)  # as if another actor had played them
    buffers["main"].complete(0)
    assert play.learner.step() is IDLE, "the second actor plays on"
    buffers["rival"].complete(1)
    assert play.learner.step() is not IDLE
    assert [trained.step for trained in play.learner.players.values()] == [1, 1]
    assert not any(buffer.held_up().any() for buffer in buffers.values())


@pytest.mark.parametrize("batch_size", [30, 90])
def test_batch_size_sets_the_decisions_of_an_update(batch_size: int) -> None:
    config = LearnerConfig(batch_size=batch_size, minibatch_size=30, buffer_size=1000)
    play = taught_self_play(GAMES["rock_paper_scissors"], config=config)  # 8 decisions a step
    counts = [progress.count for progress in play.train(100) if progress is not IDLE]
    assert len(counts) > 5
    assert all(batch_size - 8 <= count <= batch_size + 8 for count in counts)


def test_buffer_size_bounds_what_waits() -> None:
    config = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=60)
    play = taught_self_play(GAMES["connect_four"], config=config, hand_over_after=200)
    most = 0
    for _ in range(100):
        play.actor.step()
        most = max(most, waiting(play))
        play.learner.step()
    main, buffer = play.learner.players["main"], play.learner.buffers["main"]
    assert 50 < most <= 60
    assert buffer.dropped > 100
    assert play.made["main"] == main.decisions + main.stale + buffer.dropped + waiting(play)


def test_two_players_learn_from_their_own_decisions() -> None:
    line_up = (side("main", trains=True), side("rival", trains=True))
    play = TaughtPlay(GAMES["connect_four"], [line_up, (side("rival", trains=True), side("random"))])
    before = {player: trained.weights() for player, trained in play.learner.players.items()}
    play.train(150)
    for player in ("main", "rival"):
        trained = play.learner.players[player]
        assert trained.step > 1
        assert not equal(before[player], trained.weights())
        assert play.made[player] >= trained.decisions + trained.stale
    assert play.learner.players["rival"].decisions > play.learner.players["main"].decisions


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("game", [Flickering, Paying])
def test_trajectories_that_hold_no_numbers_are_refused(game: type[Flickering], memory: int) -> None:
    model = ActorCritic(hidden=(8,), memory=memory, value_normalisation=True)
    config = LearnerConfig(batch_size=24, minibatch_size=12, buffer_size=200)
    play = taught_self_play(Lifted(game), config=config, model=model, unroll_length=3)
    play.train(80)
    main = play.learner.players["main"]
    assert main.refused > 20
    assert main.decisions > 20
    assert main.skipped == 0, "the rest of the batch is sound"
    assert play.finite_weights()
    assert play.made["main"] == main.decisions + main.stale + main.refused + waiting(play)


def test_when_all_are_refused_nothing_is_learned() -> None:
    class AllBroken(Paying):
        def reset(self, seed: int) -> Any:
            return super().reset(0)

    config = LearnerConfig(batch_size=24, minibatch_size=12, buffer_size=200)
    play = taught_self_play(Lifted(AllBroken), config=config, unroll_length=3)
    before = play.learner.players["main"].weights()
    said = [progress for progress in play.train(40) if progress is not IDLE]
    main = play.learner.players["main"]
    assert (main.step, main.decisions, main.skipped) == (0, 0, 0)
    assert said[-1].statistics["main/refused"] == main.refused == play.made["main"] - waiting(play) > 0
    assert equal(before, main.weights())


def test_a_reset_begins_again_and_what_the_old_weights_played_is_never_trained_on() -> None:
    play = taught_self_play(GAMES["connect_four"])
    initial = play.learner.players["main"].weights()
    play.train(70)
    main = play.learner.players["main"]
    old = main.step
    play.learner.reset(PlayerReset("main", 4, None))
    assert equal(main.weights(), initial)
    assert play.board.newest("main") == main.model == ModelId("main", 4, old + 1)
    assert waiting(play) == 0
    before, stale = main.decisions, main.stale
    play.train(1)
    assert main.decisions == before
    play.train(60)
    assert main.decisions > before
    assert main.stale > stale
    given = {name: array + 1 for name, array in initial.items()}
    play.models.publish(ModelId("other", 0, 1), given, parent=None, variant="live", facts={})
    play.learner.reset(PlayerReset("main", 5, "other:0:1"))
    assert equal(main.weights(), given)
    play.learner.reset(PlayerReset("main", 2, None))  # repeated after a restart under a later incarnation
    assert main.incarnation == 5


def test_it_reports_progress_and_weights() -> None:
    play = taught_self_play(GAMES["connect_four"])
    play.train(60)
    main = play.learner.players["main"]
    assert play.learner.report("main") == LearnerProgress("main", 0, main.step, main.decisions)
    parent = play.learner.freeze("main", None)
    assert parent == play.learner.report("main")
    assert equal(play.models.fetch(main.model, "live"), main.weights())
    assert equal(play.models.fetch(main.model, "average"), main.average_weights())


def test_it_goes_on_from_what_it_saved() -> None:
    first, second = taught_self_play(GAMES["kuhn"], model=SMALL), taught_self_play(GAMES["kuhn"], model=SMALL)
    for play in (first, second):
        play.train(40)
        while not waiting(play):
            play.train(1)
    arrays, facts = second.learner.save()
    buffers = second.learner.save_buffers()
    for trained in second.learner.players.values():
        trained.reset({name: array * 0 for name, array in trained.weights().items()}, incarnation=1)
    for buffer in second.learner.buffers.values():
        buffer.take()
    second.learner.load(arrays, facts)
    second.learner.load_buffers(buffers)
    for play in (first, second):
        play.train(33)
    assert equal(first.learner.save()[0], second.learner.save()[0])
    assert first.learner.save()[1] == second.learner.save()[1]


class Held:
    """A buffer with so many decisions in it, because of which one of three actors may wait."""

    dropped = 0
    is_preparing = False

    def __init__(self, decisions: int, *, holds_up: bool = False) -> None:
        self.ready = decisions
        self._holds_up = holds_up

    def held_up(self) -> Any:
        return np.array([self._holds_up, False, False])

    def drop_older_than(self, version: int) -> int:
        return 0

    def take(self, enough: int | None) -> dict[int, Any]:
        return {}

    def give_back(self, refused: Any) -> None:
        self._holds_up = False

    def recompute_older_than(self, version: int) -> None:
        pass


def test_an_actor_does_not_wait_for_ever_for_a_player_that_gets_no_more_matches() -> None:
    config = LearnerConfig(batch_size=60, minibatch_size=20, buffer_size=200, schedule="async")
    line_ups = tuple((side(name, trains=True), side(name, trains=True)) for name in ("a", "b", "c"))
    play = TaughtPlay(GAMES["connect_four"], line_ups, config=config, episodes_per_table=4)
    buffers: Any = {"a": Held(60), "b": Held(30, holds_up=True), "c": Held(30)}
    play.learner.buffers = buffers
    trained = [{name.partition("/")[0] for name in play.learner.step().statistics} for _ in range(4 * len(buffers))]
    assert trained[0] == {"a"}, "its batch may still be filled"
    assert trained.count({"a", "b"}) == 1
    assert set(map(frozenset, trained)) == {frozenset("a"), frozenset("ab")}

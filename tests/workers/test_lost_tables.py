"""Tables that are lost: their matches end without a result, once, and all else goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from losing_games import Losing, LosingTables

from ludus.config import encode
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.data.replay import Replay
from ludus.data.trajectory import SlotPool, TrajectoryLayout, TrajectoryWriter
from ludus.data.trees import IntArray
from ludus.evaluation.tournament import MOST_TRIES, EvaluationMatch, Recorder, Tournament, Wanted
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource
from ludus.games.pictures import Moment
from ludus.games.seat_rows import GameError
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig, TableHistory
from ludus.workers.config import LearnerConfig
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer
from ludus.workers.worker import IDLE, Progress, StopTraining, Worker


def tiny(game: GameSource) -> Experiment:
    return Experiment(
        name="tiny",
        game=game,
        budget=3_000,
        model=ActorCritic(hidden=(8,)),
        actor=ActorConfig(num_tables=16, matches=4, episodes_per_table=4, unroll_length=8),
        learner=LearnerConfig(batch_size=500, minibatch_size=500, epochs=1),
        league=LeagueRules(
            roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_500))}, bots=("random",)
        ),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=16),
        runtime="serial",
    )


def players(game: GameSource) -> FixedPlayers:
    return FixedPlayers({name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()})


def test_every_match_of_a_league_has_exactly_one_end(tmp_path: Path) -> None:
    when = {0: [3], 5: [0, 1], 9: [4], 10: [5], 11: [6, 12], 40: [*range(16)], 60: [15]}
    experiment = tiny(Losing(Kuhn(), when))
    folder = RunFolder.create(tmp_path / "run", encode(tiny(Kuhn())), seed=0, command=())
    training = serial_training(experiment, folder)
    writers = training.workers.actor.recorder.writers
    total = sum(writer.num_free for writer in writers)
    assert training.run() == "finished"
    training.close()
    held = sum(int((writer.slot >= 0).sum()) for writer in writers)
    assert sum(writer.num_free for writer in writers) + held + _waiting(training) == total
    lost = _void(folder, training)
    assert {*lost} == {f"game: crashed: at step {step}" for step in when}
    assert lost["game: crashed: at step 11"] == 2
    assert lost["game: crashed: at step 40"] >= 4, "at least one match on each block of tables"


def test_a_table_lost_while_a_bot_acts_ends_its_match_once(tmp_path: Path) -> None:
    experiment = tiny(Losing(Kuhn(), {}, by_bots=frozenset(range(1, 60, 2))))
    folder = RunFolder.create(tmp_path / "run", encode(tiny(Kuhn())), seed=0, command=())
    training = serial_training(experiment, folder)
    assert training.run() == "finished"
    training.close()
    assert _void(folder, training).total() > 1


def test_tables_lost_while_they_are_brought_back_end_their_matches_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = _StopAtHandOver()
    experiment = tiny(Losing(Kuhn(), {}))
    folder = RunFolder.create(tmp_path / "run", encode(tiny(Kuhn())), seed=0, command=())
    training = serial_training(replace(experiment, middleware=(stop,)), folder)
    training.run()
    training.close()
    assert stop.stopped

    def lose_some(history: TableHistory, game: GameBatch, steps: IntArray) -> None:
        replay(history, game, steps)
        assert isinstance(game, LosingTables)
        game.lose([3, 5])

    replay = TableHistory.replay
    monkeypatch.setattr(TableHistory, "replay", lose_some)
    again = serial_training(experiment, RunFolder.open(folder.path))
    assert again.run() == "finished"
    assert again.learner.players["main"].incarnation == 0, "it went on where it was"
    again.close()
    assert _void(folder, again).total() > 0


class _StopAtHandOver:
    """When actions are made, but not yet played."""

    stopped = False

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        if worker.name == "actor" and progress == IDLE:
            self.stopped = True
            raise StopTraining
        return progress


def _void(folder: RunFolder, training: Coordinator[SerialWorkers]) -> Counter[str]:
    """How many matches were void for which loss of the game. Every match has one end, or is open still."""
    with folder.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    void = [event for event in events if isinstance(event, MatchVoid)]
    ends = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    ends += [event.match_id for event in void]
    assert max(Counter(ends).values()) == 1
    assert {*ends} | {*training.league.matches.open_matches} == {*issued}
    return Counter(event.reason for event in void if event.reason.startswith("game: "))


def _waiting(training: Coordinator[SerialWorkers]) -> int:
    """Slots that the learner has and was not asked to train on."""
    buffers = training.learner.buffers.values()
    return sum(len(taken.slots) for buffer in buffers for taken in buffer.take().values())


def test_a_dropped_stream_gives_its_slot_back_and_starts_afresh() -> None:
    kind = Kuhn().spec.kinds[0]
    layout = TrajectoryLayout(kind=kind, unroll_length=4)
    handed: list[int] = []
    writer = TrajectoryWriter(SlotPool(layout, 4), 2, lambda _, slots: handed.extend(slots.tolist()))
    columns = {
        name: np.zeros((2, *spec.shape), spec.dtype)
        for name, spec in layout.rows.items()
        if name.partition(".")[0] in ("observation", "legal", "action", "log_prob", "value", "version")
    }
    both = np.arange(2)
    writer.record(both, columns, {})
    writer.drop(np.array([1]))
    assert writer.num_free == 3
    assert writer.open.tolist() == [True, False]
    writer.record(both, columns, {})
    writer.end(both)
    writer.flush(both, {})
    assert len(handed) == 2
    assert writer.num_free == 2


def test_a_tournament_plays_a_lost_match_again() -> None:
    game = Losing(TicTacToe(), {3: [1], 30: [0]})
    line_ups = [("perfect", "random"), ("random", "perfect")]
    results = Tournament(game, players(game), line_ups, episodes=20, num_tables=4).run()
    assert {number: result.episodes for number, result in results.items()} == {0: 24, 1: 24}
    assert results[0].pairs[0].losses == 0
    assert results[1].pairs[0].wins == 0


def test_a_tournament_at_tables_that_are_always_lost_gives_up() -> None:
    game = Losing(TicTacToe(), {}, always=True)
    tournament = Tournament(game, players(game), [("perfect", "random")], episodes=4, num_tables=2)
    with pytest.raises(
        GameError, match=rf"perfect against random ended without a result {MOST_TRIES} times, at last: game: crashed"
    ):
        tournament.run()


def test_an_exhibition_shows_what_it_was_asked_for() -> None:
    game = Losing(TicTacToe(), {12: [0]})
    moments: list[Moment] = []
    EvaluationMatch(game, players(game), [("perfect", "random")], moments.append, episodes=3).run()
    ends = [moment.episode for moment in moments if moment.ended]
    assert ends in ([1, 1, 2, 3], [1, 2, 1, 2, 3])
    assert max(moment.episode for moment in moments) == 3


def test_no_episode_is_recorded_twice() -> None:
    game = Losing(TicTacToe(), {14: [1], 20: [0]})
    kept: list[Replay] = []
    Recorder(
        game,
        players(game),
        [Wanted(players=("random", "perfect"), episodes=12)],
        address="tic_tac_toe",
        options={},
        keep=lambda _, replay: kept.append(replay),
        num_tables=2,
    ).record()
    assert len(kept) == 12
    assert len({replay.seed for replay in kept}) == 12
    assert Counter(replay.matchup[0] for replay in kept) == {"random": 6, "perfect": 6}

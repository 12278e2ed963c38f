"""Whole runs in one process: determinism, stopping and going on, crashes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from whole_runs import (
    EXPERIMENTS,
    Outcome,
    StopAt,
    assert_same,
    check_ledger,
    crash,
    open_training,
    run_until,
    run_whole,
    tiny,
)

from ludus.data.records import LearnerProgress, MatchFinished, MatchIssued, MatchVoid, ModelId, PlayerAdded, RunStarted
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.isolation.isolated import Isolation
from ludus.league.matchmaking import PFSP
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.runtime.rounds import FINISHED, STOPPED
from ludus.store.run_folder import read_metrics
from ludus.workers.worker import IDLE, Progress, StopTraining, Worker


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """The runs of `EXPERIMENTS` in one piece, each made once."""
    return cache(lambda name: run_whole(tmp_path_factory.mktemp("whole") / "run", EXPERIMENTS[name]))


# --- the same again ---


@pytest.mark.parametrize("name", ["kuhn", "connect_four", "memory", "siege", "goofspiel", "cartpole"])
def test_the_same_seed_gives_the_same_run(name: str, uninterrupted: Callable[[str], Outcome], tmp_path: Path) -> None:
    first = uninterrupted(name)
    assert_same(first, run_whole(tmp_path, EXPERIMENTS[name]))
    kinds = Counter(type(event).__name__ for event in first.events)
    assert kinds["PlayerAdded"] > 3
    assert kinds["MatchFinished"] > 3
    assert kinds["LearnerProgress"] > 5
    purposes = Counter(event.match.purpose for event in first.events if isinstance(event, MatchIssued))
    assert min(purposes["training"], purposes["evaluation"]) > 0


def test_another_seed_gives_another_run(uninterrupted: Callable[[str], Outcome], tmp_path: Path) -> None:
    one = uninterrupted("kuhn")
    other = run_whole(tmp_path, replace(EXPERIMENTS["kuhn"], seed=4))
    assert one.events != other.events
    assert one.digest != other.digest
    assert any(not np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stopping_and_going_on_changes_nothing(
    name: str, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    """Wherever in a round it stops, and however often."""
    experiment = EXPERIMENTS[name]
    for piece in itertools.count():
        training = run_until(tmp_path, experiment, StopAt(7 + 5 * piece, after=piece % 2 == 0))
        if training.learner.decisions > experiment.budget / 2:
            break
    assert piece > 1
    assert training.learner.decisions < experiment.budget
    assert_same(uninterrupted(name), run_whole(tmp_path, experiment))


BY_SEED = """
import json, sys
sys.stdin.readline()
print(json.dumps({"protocol": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    legal = [row["legal"]["move"] for row in request["rows"]]
    chosen = [options[request["seed"] % len(options)] for options in legal]
    print(json.dumps({"id": request["id"], "actions": chosen}), flush=True)
"""


@pytest.mark.slow
def test_games_and_bots_in_other_processes_go_on_exactly_too(tmp_path: Path) -> None:
    program = tmp_path / "by_seed.py"
    program.write_text(BY_SEED)
    experiment = tiny(
        TicTacToe(),
        budget=240,
        isolation=Isolation(processes=2),
        bots={"by_seed": f"program:{program}"},
        league=LeagueRules(
            roles={"main": Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=80))},
            bots=("perfect", "by_seed"),
        ),
    )

    def stop_at_hand_over(worker: Worker, step: Callable[[], Progress]) -> Progress:
        """Between what bots have chosen and the step that plays it."""
        progress = step()
        if worker.name == "actor" and progress == IDLE:
            raise StopTraining
        return progress

    for _ in range(3):
        training = open_training(tmp_path / "cut", replace(experiment, middleware=(stop_at_hand_over,)))
        with closing(training):
            assert training.run() == STOPPED
    whole = run_whole(tmp_path / "whole", experiment)
    assert_same(whole, run_whole(tmp_path / "cut", experiment))
    issued = [event.match for event in whole.events if isinstance(event, MatchIssued)]
    met = {player for match in issued for side in match.sides for player in side.players}
    assert {"perfect", "by_seed"} <= met


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stopped_at", ["learner", "controller", "actor"])
def test_stopping_around_an_update_changes_nothing(
    stopped_at: str, after: bool, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    updating = False

    def stop(worker: Worker, step: Callable[[], Progress]) -> Progress:
        nonlocal updating
        updating = updating or training.learner.buffers["main"].held_up().any()
        if updating and worker.name == stopped_at:
            if after:
                step()
            raise StopTraining
        return step()

    experiment = EXPERIMENTS["connect_four"]
    for _ in range(2):
        updating = False
        with closing(open_training(tmp_path, replace(experiment, middleware=(stop,)))) as training:
            training.run()
    assert_same(uninterrupted("connect_four"), run_whole(tmp_path, experiment))


def test_a_longer_budget_goes_on_with_the_same_matches(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    before = run_whole(tmp_path, replace(experiment, budget=120))
    after = run_whole(tmp_path, experiment)
    assert after.events[: len(before.events)] == before.events
    assert after.facts["main"]["incarnation"] == 0
    assert after.facts["main"]["decisions"] >= experiment.budget
    assert not any(isinstance(event, MatchVoid) for event in check_ledger(tmp_path))


def test_a_longer_budget_does_not_begin_with_what_was_played_during_the_final_evaluation(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    evaluation = replace(experiment.evaluation, episodes=200)
    experiment = replace(experiment, evaluation=evaluation)
    run_whole(tmp_path, replace(experiment, budget=120))
    run_whole(tmp_path, experiment)
    learned = [row["decisions"] for row in read_metrics(tmp_path / "metrics" / "train.jsonl")[0]]
    sizes = [now - before for before, now in itertools.pairwise([0, *learned])]
    assert len(sizes) > 3
    assert max(sizes) < 2 * experiment.learner.batch_size


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stopped_at", ["learner", "actor"])
def test_stopping_at_the_end_changes_nothing(
    stopped_at: str, after: bool, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    """Around the last update, and while what was learned is measured."""
    experiment = EXPERIMENTS["connect_four"]

    def stop(worker: Worker, step: Callable[[], Progress]) -> Progress:
        if stopped_at == "learner":
            buffer = training.learner.buffers["main"]
            now = buffer.held_up().any() and training.learner.decisions + buffer.decisions >= experiment.budget
        else:
            now = training.learner.decisions >= experiment.budget
        if now and worker.name == stopped_at:
            if after:
                step()
            raise StopTraining
        return step()

    with closing(open_training(tmp_path, replace(experiment, middleware=(stop,)))) as training:
        assert training.run() == STOPPED
    assert_same(uninterrupted("connect_four"), run_whole(tmp_path, experiment))


def test_other_settings_start_new_matches(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    run_whole(tmp_path, replace(experiment, budget=120))
    changed = replace(experiment, actor=replace(experiment.actor, num_tables=4))
    with closing(open_training(tmp_path, changed)) as training:
        assert training.learner.players["main"].incarnation == 1
        assert training.run() == FINISHED
    check_ledger(tmp_path)


# --- crashes ---


@pytest.mark.parametrize("name", ["kuhn", "siege", "memory"])
def test_a_crash_loses_no_result_and_counts_none_twice(name: str, tmp_path: Path) -> None:
    experiment = replace(EXPERIMENTS[name], checkpoint_every=100)
    crash(tmp_path, experiment, decisions=230)
    before = check_ledger(tmp_path)
    finished = [event for event in before if isinstance(event, MatchFinished)]
    assert finished
    with closing(open_training(tmp_path, experiment)) as training:
        assert 100 <= training.learner.decisions < experiment.budget, "it goes on from the checkpoint"
        assert training.learner.players["main"].incarnation == 1
        assert training.league.matches.finished == len(finished)
        assert not training.league.matches.open_matches
        assert training.run() == FINISHED
    events = check_ledger(tmp_path)
    assert events[: len(before)] == before
    void = [event for event in events if isinstance(event, MatchVoid)]
    assert {event.reason for event in void} == {"restart"}
    assert len(void) == sum(isinstance(event, MatchIssued) for event in before) - len(finished)
    assert [event.start for event in events if isinstance(event, RunStarted)] == [0, 1]
    played = {
        name
        for event in events[len(before) :]
        if isinstance(event, MatchFinished)
        for name in (*event.result.first_models, *event.result.last_models)
    }
    frozen = {event.model for event in events if isinstance(event, PlayerAdded)}
    old = {str(ModelId("main", 0, event.step)) for event in before if isinstance(event, LearnerProgress)}
    assert not (played - frozen) & old, "an id never means two contents"


def test_a_crash_before_the_first_checkpoint_starts_afresh(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    for start in range(3):
        crash(tmp_path, experiment, decisions=60)
        with closing(open_training(tmp_path, experiment)) as training:
            assert training.learner.decisions == 0
            assert training.learner.players["main"].incarnation == start + 1
    events = check_ledger(tmp_path)
    assert [event.start for event in events if isinstance(event, RunStarted)] == list(range(6))


def test_a_clean_stop_is_not_used_twice_after_a_crash(tmp_path: Path) -> None:
    """The tables of a clean checkpoint are of no use once the ledger has gone on."""
    experiment = EXPERIMENTS["connect_four"]
    run_until(tmp_path, experiment, StopAt(80, after=True))
    crash(tmp_path, experiment, decisions=200)
    with closing(open_training(tmp_path, experiment)) as training:
        assert training.learner.players["main"].incarnation == 1
        assert training.run() == FINISHED
    check_ledger(tmp_path)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENTS["kuhn"], checkpoint_every=60)
    training = run_until(tmp_path, experiment, StopAt(260, after=True))
    older, newest = sorted((tmp_path / "checkpoints").rglob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    with closing(open_training(tmp_path, experiment)) as again:
        assert again.learner.decisions == int(older.stem.split("-")[1]) > 0
        assert again.learner.decisions <= training.learner.decisions
        assert again.learner.players["main"].incarnation == 1
        assert again.run() == FINISHED
    check_ledger(tmp_path)


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    whole = run_whole(tmp_path, EXPERIMENTS["kuhn"])
    assert_same(whole, run_whole(tmp_path, EXPERIMENTS["kuhn"]))

"""Rows of the fault reference that befall an actor, or the game that it plays."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from invariants import check_nothing_left, check_run
from processes import descendants, is_gone, wait_until, workers
from tiny_runs import LOCAL, QUICK, RAY, bad_game, create, faults_of, kill, learned, local, once, started, tiny

from ludus.data.records import MatchFinished, MatchVoid, Result
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.processes import ProcessWorkers
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.worker import TrainingFailed


def voids(path: Path) -> list[MatchVoid]:
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        return [event for _, event in ledger.replay() if isinstance(event, MatchVoid)]


def run_to_the_end(path: Path, training: Coordinator[ProcessWorkers], watch: Any = None) -> None:
    assert training.run(watch) == FINISHED
    check_run(path, live=training.league)


@pytest.mark.parametrize("runtime", ["local", RAY])
def test_row_01_kill_an_actor_in_the_middle_of_episodes(tmp_path: Path, runtime: str) -> None:
    path = tmp_path / "run"
    with local(path, tiny(runtime=runtime)) as training:
        pids = [*training.workers.actor_pids, training.workers.learner_pid]
        watch = once(learned(4_000), lambda t: kill(t.workers.actor_pids[0]))
        run_to_the_end(path, training, watch)
        assert watch.done
        assert training.restarts == 1
        pids += [*training.workers.actor_pids, training.workers.learner_pid]
        assert training.league.starts == 1, "the run itself went on"
    [fault] = faults_of(path)
    assert (fault["class"], fault["worker"], fault["then"]) == ("killed", "actor-0", "started again")
    assert fault["pid"] == pids[0]
    assert [void.match_id for void in voids(path) if void.reason.startswith("killed")] == fault["matches"]
    assert len(fault["matches"]) >= 2
    check_nothing_left(path, pids)


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_02_kill_an_actor_at_the_end_of_a_match_before_it_tells(tmp_path: Path, runtime: str) -> None:
    """The game ends its own process in the step that ends the last episode of the match."""
    path = tmp_path / "run"
    game = bad_game(tmp_path / "marks", act="kill", after=-1)
    one_match = ActorConfig(num_tables=16, matches=1, episodes_per_table=8, unroll_length=8)
    with local(path, tiny(game, actor=one_match, budget=4_000, runtime=runtime)) as training:
        run_to_the_end(path, training)
        assert training.faults.counts == {"killed": 1}
    [fault] = faults_of(path)
    [void] = [void for void in voids(path) if void.reason != "stopped"]
    assert fault["matches"] == [void.match_id]
    assert "SIGKILL" in void.reason


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_03_kill_an_actor_that_has_told_and_not_heard(tmp_path: Path, runtime: str) -> None:
    """The result is in; told once more, it changes nothing, and another result is refused."""
    path = tmp_path / "run"
    with local(path, tiny(budget=6_000, runtime=runtime)) as training:
        report = training.controller.report
        killed: list[Result] = []

        def deaf(result: Result) -> None:
            if not killed:
                killed.append(result)
                kill(training.workers.actor_pids[0])
                wait_until(lambda: is_gone(training.workers.actor_pids[0]), "the actor to die")
            report(result)

        training.controller.report = deaf  # type: ignore[method-assign]
        run_to_the_end(path, training)
        [first] = killed
        before = training.league.state_digest()
        report(first)
        assert training.league.state_digest() == before
        with pytest.raises(ValueError, match=f"match {first.match_id} has already ended"):
            report(msgspec.structs.replace(first, steps=1))
        assert training.league.state_digest() == before
    check_run(path, acknowledged=killed)
    assert first.match_id not in faults_of(path)[0]["matches"]


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_07_kill_an_actor_that_measures(tmp_path: Path, runtime: str) -> None:
    """There is no evaluator process: actors play evaluation matches, so the one that holds one is killed."""
    path = tmp_path / "run"
    measured: list[int] = []

    def measuring(training: Coordinator[ProcessWorkers]) -> bool:
        found = training.league.matches.open_matches
        measured[:] = [number for number, held in found.items() if held.match.purpose == "evaluation"]
        return bool(measured)

    with local(path, tiny(budget=5_000, runtime=runtime)) as training:
        watch = once(measuring, lambda t: kill(t.workers.actor_pids[0]))
        run_to_the_end(path, training, watch)
        assert watch.done
        league = training.league
        for player in league.candidates.frozen():
            assert league.payoffs.evaluation.games(player, "random") >= 32, "measured all the same"


@pytest.mark.parametrize("runtime", [LOCAL, RAY])
def test_row_10_an_actor_that_slept_too_long_cannot_tell_any_more(tmp_path: Path, runtime: str) -> None:
    """Without a sign of life it is ended before its matches are given up, so a late result cannot come."""
    path = tmp_path / "run"
    with local(path, tiny(budget=8_000, supervision=QUICK, runtime=runtime)) as training:
        pid = training.workers.actor_pids[0]
        run_to_the_end(path, training, once(learned(2_000), lambda t: kill(pid, signal.SIGSTOP)))
        assert training.faults.counts == {"env_hang": 1}
        assert is_gone(pid)
        stale = voids(path)[0].match_id
        result = next(e.result for _, e in training._ledger.replay() if isinstance(e, MatchFinished))
        with pytest.raises(ValueError, match=f"match {stale} has already ended"):
            training.controller.report(msgspec.structs.replace(result, match_id=stale))
    check_run(path)


@pytest.mark.slow
def test_row_13_a_step_of_the_game_never_returns(tmp_path: Path) -> None:
    path = tmp_path / "run"
    game = bad_game(tmp_path / "marks", act="hang")
    with local(path, tiny(game, budget=5_000, supervision=QUICK)) as training:
        run_to_the_end(path, training)
    [fault] = faults_of(path)
    assert (fault["class"], fault["then"]) == ("env_hang", "started again")
    assert "no sign of life for 4 s" in fault["reason"]
    assert {void.reason.partition(":")[0] for void in voids(path)} == {"env_hang", "stopped"}


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("raise", "OSError: no licence for this game"),
        pytest.param("segfault", "actor-0 was ended by SIGSEGV", marks=pytest.mark.slow),
        pytest.param("exit", "actor-0 ended with exit code 0", marks=pytest.mark.slow),
    ],
)
def test_row_14_the_game_raises_crashes_or_exits(tmp_path: Path, act: str, reason: str) -> None:
    path = tmp_path / "run"
    with local(path, tiny(bad_game(tmp_path / "marks", act=act), budget=3_000)) as training:
        run_to_the_end(path, training)
    [fault] = faults_of(path)
    assert (fault["class"], fault["reason"], fault["then"]) == ("env_crash", reason, "started again")
    assert len(fault["matches"]) >= 2


@pytest.mark.slow
def test_row_14_a_game_that_keeps_failing_is_quarantined_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    game = bad_game(tmp_path / "marks", act="raise", times=99, after=2, only=1)
    with local(path, tiny(game, budget=4_000), num_actors=2) as training:
        run_to_the_end(path, training)
        assert len(training.workers.actor_pids) == 1
    faults = faults_of(path)
    assert [fault["worker"] for fault in faults] == ["actor-1"] * 3
    assert [fault["then"] for fault in faults] == ["started again", "started again", "quarantined"]


@pytest.mark.slow
def test_row_14_a_run_without_a_game_that_works_ends_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    game = bad_game(tmp_path / "marks", act="raise", times=99, after=2)
    with (
        local(path, tiny(game)) as training,
        pytest.raises(TrainingFailed, match=r"no actor is left: actor-0 failed 3 times .*no licence.*actor-0\.log"),
    ):
        training.run()
    check_run(path)
    assert list((path / "checkpoints" / "run").iterdir()), "what was learned is saved"
    check_nothing_left(path, ())


@pytest.mark.slow
def test_row_15_what_a_game_has_started_ends_with_it(tmp_path: Path) -> None:
    """Once when the actor is killed, and once when the controller is: then the guard ends it."""
    path, marks = tmp_path / "run", tmp_path / "marks"
    create(path, tiny(bad_game(marks, act="start a child", times=2, per_process=1), budget=10**9))
    with started(path) as training:
        for victim in ("actor", "controller"):
            wait_until((marks / "child").exists, "the game to start its child")
            child = int((marks / "child").read_text())
            (marks / "child").unlink()
            assert not is_gone(child)
            left = [*descendants(training.pid), child]
            kill(workers(training.pid, "actor")[0] if victim == "actor" else training.pid)
            wait_until(lambda child=child: is_gone(child), "the game's child to end")  # type: ignore[misc]
    check_nothing_left(path, left, clean=False)
    check_run(path, open_matches=True)


@pytest.mark.slow
def test_an_actor_that_lost_its_results_is_replaced(tmp_path: Path) -> None:
    """What cannot be a result costs its sender the place, not the run."""
    path = tmp_path / "run"
    with local(path, tiny(budget=4_000)) as training:
        report = training.controller.report
        wrong: list[int] = []

        def mangled(result: Result) -> None:
            if wrong:
                return report(result)
            wrong.append(result.match_id)
            return report(Result(**{**{f: getattr(result, f) for f in result.__struct_fields__}, "pairs": ()}))

        training.controller.report = mangled  # type: ignore[method-assign]
        run_to_the_end(path, training)
    [fault] = faults_of(path)
    assert fault["class"] == "bad_result"
    assert wrong[0] in fault["matches"]

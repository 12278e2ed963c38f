"""More and fewer actors while a run trains: nobody else notices, and no match is lost or counted twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ludus.config import encode
from ludus.data.records import AnyEvent, ChangeSettings, MatchFinished, MatchIssued, MatchLeased, MatchVoid
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.league.rules import EvaluationConfig
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.coordinator import Coordinator, Training
from ludus.runtime.processes import ProcessWorkers, local_training
from ludus.runtime.supervisor import SCALED_DOWN
from ludus.store.run_control import Asked, EditAnswer, read_status
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig, Supervision
from ludus.workers.worker import StopTraining

ENOUGH = "seen enough"


def endless(**changes: object) -> Experiment:
    described = Experiment(
        name="tiny",
        game=Kuhn(),
        budget=10**9,
        model=ActorCritic(hidden=(8,)),
        actor=ActorConfig(num_tables=16, matches=2, episodes_per_table=16, unroll_length=8),
        learner=LearnerConfig(batch_size=400, minibatch_size=400, epochs=1, buffer_size=4_000),
        evaluation=EvaluationConfig(episodes=32),
        runtime="local",
    )
    return replace(described, **changes)  # type: ignore[arg-type]


@contextmanager
def local(path: Path, described: Experiment | None, num_actors: int) -> Iterator[Coordinator[ProcessWorkers]]:
    """A new run or, without an experiment, one that goes on."""
    if described is not None:
        RunFolder.create(path, encode(described), seed=0, command=())
    folder = RunFolder.open(path)
    with folder.lock(), closing(local_training(load_experiment(folder), folder, num_actors)) as training:
        yield training


@dataclass
class Scaler:
    """Watches a run through as many numbers of actors as it is given, and then ends it."""

    counts: list[int]
    answers: list[EditAnswer] = field(default_factory=list)
    pids: list[list[int]] = field(default_factory=list)
    """Of the actors, whenever as many as wanted have finished matches."""
    _asked: Asked | None = None
    _since: int = 0

    def __call__(self, training: Training) -> None:
        assert isinstance(training.workers, ProcessWorkers)
        if self._asked is not None:
            if (answer := self._asked.answer()) is None:
                return
            self._asked = None
            self.answers.append(answer)
            self._since = training.league.num_events
        wanted = self.counts[len(self.answers) - 1] if self.answers else len(training.workers.actor_pids)
        if len(training.workers.actor_pids) != wanted or len(_who_finished(training, self._since)) < wanted:
            return
        self.pids.append(training.workers.actor_pids)
        if len(self.answers) == len(self.counts):
            raise StopTraining(ENOUGH)
        count = self.counts[len(self.answers)]
        edit = ChangeSettings(settings={"actors": str(count)})
        self._asked = Asked(training.folder.requests, edit)


def _who_finished(training: Training, since: int) -> set[str]:
    """Actors that have been given a match since some event, and have ended it."""
    holder: dict[int, str] = {}
    done = set()
    with training.folder.ledger(read_only=True) as ledger:
        for _, event in ledger.replay(after=since):
            if isinstance(event, MatchLeased):
                holder[event.match_id] = event.holder
            elif isinstance(event, MatchFinished) and event.result.match_id in holder:
                done.add(holder[event.result.match_id])
    return done


def events_of(path: Path) -> list[AnyEvent]:
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


def check_ledger(path: Path) -> dict[str, int]:
    """Every match has exactly one end; gives the reasons of those that are void."""
    events = events_of(path)
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    ends = Counter(event.result.match_id for event in events if isinstance(event, MatchFinished))
    ends.update(event.match_id for event in events if isinstance(event, MatchVoid))
    assert Counter(issued) == ends
    league = new_league(load_experiment(RunFolder.open(path)))
    for event in events:
        league.apply(event)
    return Counter(event.reason for event in events if isinstance(event, MatchVoid))


def test_actors_join_and_leave_while_others_play(tmp_path: Path) -> None:
    path, scaler = tmp_path / "run", Scaler([2, 1])
    with local(path, endless(), 1) as training:
        assert training.run(scaler) == ENOUGH
        assert training.restarts == 0
    assert [answer.refused for answer in scaler.answers] == [None, None]
    one, two, left = scaler.pids
    assert len(two) == 2
    assert one[0] in two, "the first actor stays as it is"
    assert left == one
    void = check_ledger(path)
    assert SCALED_DOWN not in void, "who leaves ends its matches"
    assert set(void) == {"stopped"}
    assert not read_metrics(path / "metrics" / "faults.jsonl")[0]


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["inline", "worker"])
def test_places_are_used_again_and_the_number_stays(tmp_path: Path, inference: str) -> None:
    path, scaler = tmp_path / "run", Scaler([2, 1, 3, 2])
    described = endless()
    described = replace(described, actor=replace(described.actor, inference=inference))
    with local(path, described, 1) as training:
        assert training.run(scaler) == ENOUGH
        assert training.restarts == 0
    assert [len(pids) for pids in scaler.pids] == [1, 2, 1, 3, 2]
    assert set(check_ledger(path)) == {"stopped"}
    again = Scaler([])
    with local(path, None, 1) as training:
        training.run(lambda training: again(training))
        assert [len(pids) for pids in again.pids] == [2], "as it was scaled, whatever the machine would have"
    check_ledger(path)


@pytest.mark.slow
def test_who_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    long = replace(endless().actor, episodes_per_table=2_000_000)
    rules = Supervision(leave_within_s=0.5)
    asked: list[Asked] = []

    def scale_down(training: Training) -> None:
        assert isinstance(training.workers, ProcessWorkers)
        leased = [event for event in events_of(path) if isinstance(event, MatchLeased)]
        if not asked and len({event.holder for event in leased}) == 2:
            edit = ChangeSettings(settings={"actors": "1"})
            asked.append(Asked(training.folder.requests, edit))
        if asked and len(training.workers.actor_pids) == 1:
            raise StopTraining(ENOUGH)

    with local(path, endless(actor=long, supervision=rules), 2) as training:
        assert training.run(scale_down) == ENOUGH
        assert training.restarts == 0
    void = check_ledger(path)
    assert void[SCALED_DOWN] == 2, "the matches of one actor"
    assert void["stopped"] == 2


def test_nobody_waits_for_who_was_to_be_started_again(tmp_path: Path) -> None:
    """Actors take turns with each other: one that has crashed and waits for its next start has to be
    forgotten when it is not wanted any more."""
    path = tmp_path / "run"
    asked: list[Asked] = []
    learned: list[float] = []

    def crash_and_scale_down(training: Training) -> None:
        assert isinstance(training.workers, ProcessWorkers)
        decisions = training.numbers()["decisions"]
        if not learned and decisions > 0:
            os.kill(training.workers.actor_pids[1], signal.SIGSEGV)
            learned.append(decisions)
        elif not asked and training.faults.counts["env_crash"]:
            asked.append(Asked(training.folder.requests, ChangeSettings(settings={"actors": "1"})))
        elif asked and len(learned) == 1 and asked[0].answer() is not None:
            learned.append(decisions)
        elif len(learned) == 2 and decisions > learned[1] + 1_000:
            raise StopTraining(ENOUGH)
        assert time.monotonic() < deadline, "the learner waits for an actor that nobody starts"

    with local(path, endless(supervision=Supervision(back_off_s=300.0)), 2) as training:
        deadline = time.monotonic() + 60
        assert training.run(crash_and_scale_down) == ENOUGH
    check_ledger(path)


def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    path, edits = tmp_path / "run", ["0", "17", "2.5"]
    answers: list[EditAnswer] = []
    asked: list[Asked] = []

    def ask_for_too_many(training: Training) -> None:
        if asked and (answer := asked[-1].answer()) is not None:
            answers.append(answer)
        if len(asked) == len(answers):
            if len(answers) == len(edits):
                raise StopTraining(ENOUGH)
            edit = ChangeSettings(settings={"actors": edits[len(answers)]})
            asked.append(Asked(training.folder.requests, edit))

    with local(path, endless(), 1) as training:
        training.run(ask_for_too_many)
        assert len(training.workers.actor_pids) == 1
    refusals = [answer.refused or "" for answer in answers]
    assert "at least 1, got 0" in refusals[0]
    assert "16 places" in refusals[1]
    assert "--resume --actors 17" in refusals[1]
    assert "actors" in refusals[2]
    status = read_status(path / "status.json")
    assert status is not None
    assert status.state == "stopped"

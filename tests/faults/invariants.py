"""What must hold in a run folder whatever was killed: I1 to I5 and I7 of the fault reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from processes import is_gone, wait_until
from tiny_runs import BATCH

from ludus.data.records import AnyEvent, LearnerProgress, MatchFinished, MatchIssued, MatchVoid, ModelId, Result
from ludus.league.league import League
from ludus.league.summary import summarise
from ludus.runtime.assemble import load_experiment, new_league
from ludus.store.run_folder import RunFolder


def check_run(
    path: Path, *, live: League | None = None, acknowledged: Iterable[Result] = (), open_matches: bool = False
) -> League:
    """All of them; gives the league as it is rebuilt from row 0. `live`: the one that the controller had."""
    folder = RunFolder.open(path)
    with folder.ledger(read_only=True) as ledger:
        events = [event for _, event in ledger.replay()]
    league = new_league(load_experiment(folder))
    for event in events:
        league.apply(event)
    check_matches(events, league, open_matches=open_matches)
    if live is not None:
        check_same(live, league)
    finished = {event.result.match_id: event.result for event in events if isinstance(event, MatchFinished)}
    for result in acknowledged:  # I3
        assert finished.get(result.match_id) == result, f"the result of match {result.match_id} was lost"
    check_models(folder, events, league)
    check_progress(events, load_experiment(folder).checkpoint_every)
    return league


def check_matches(events: list[AnyEvent], league: League, *, open_matches: bool) -> None:
    """I1: every issued match has exactly one end, or is still open."""
    issued = Counter(event.match.id for event in events if isinstance(event, MatchIssued))
    ends: Counter[int] = Counter()
    for event in events:
        if isinstance(event, MatchFinished):
            ends[event.result.match_id] += 1
        elif isinstance(event, MatchVoid):
            assert event.reason, f"match {event.match_id} is void without a reason"
            ends[event.match_id] += 1
    assert set(issued.values()) <= {1}
    assert set(ends.values()) <= {1}
    assert set(ends) <= set(issued)
    assert issued.keys() - ends.keys() == set(league.matches.open_matches)
    assert open_matches or not league.matches.open_matches, "a run that ended in good order leaves none open"


def check_same(live: League, rebuilt: League) -> None:
    """I2: payoff and ratings are a fold of the ledger, bit for bit."""
    assert live.state_digest() == rebuilt.state_digest()
    one, two = summarise(live), summarise(rebuilt)
    assert one.ratings == two.ratings
    assert np.array_equal(one.win_rates, two.win_rates, equal_nan=True)
    assert one.equilibrium == two.equilibrium


def check_models(folder: RunFolder, events: list[AnyEvent], league: League) -> None:
    """I4: every model that a player of the league is pinned to opens, with its whole lineage; no id means two
    contents."""
    for name in league.candidates.frozen():
        player = league.players[name]
        model = ModelId.parse(player.model or "")
        folder.models.fetch(model, player.weights)  # compares the digest
        folder.models.lineage(model)
    trained: dict[ModelId, int] = {}
    for event in events:
        if isinstance(event, LearnerProgress):
            model = ModelId(event.player, event.incarnation, event.step)
            assert trained.setdefault(model, event.decisions) == event.decisions, f"{model} is two models"


def check_progress(events: list[AnyEvent], checkpoint_every: int) -> None:
    """I5: a learner never falls back by more than the checkpoint interval and the batch that passed it."""
    before: dict[str, LearnerProgress] = {}
    for event in events:
        if isinstance(event, LearnerProgress):
            last = before.get(event.player, event)
            if last.incarnation == event.incarnation:
                assert event.decisions >= last.decisions
            assert last.decisions - event.decisions <= checkpoint_every + 2 * BATCH
            before[event.player] = event


def check_nothing_left(path: Path, pids: Iterable[int], *, clean: bool = True) -> None:
    """I7: no process, no shared memory, and after an end in good order no temporary file. What a killed
    process was just writing aside is removed by the next start."""
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} to end")  # type: ignore[misc]
    assert not [file.name for file in Path("/dev/shm").glob("*ludus*")]
    if clean:
        assert not list(path.rglob("*.tmp"))
        assert not (path / "lock.json").read_bytes(), "the lock names nobody"

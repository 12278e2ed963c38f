"""Matches, newest first, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ludus.data.records import Match, MatchFinished, MatchVoid, Result
from ludus.run_view.documents import Matches, MatchLine, MatchSide
from ludus.run_view.fold import FINISHED, PURPOSES, VOID, RunFold
from ludus.run_view.league_page import counts
from ludus.store.ledger import Ledger

PAGE = 100
STATES = ("finished", "void", "open")


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchFilter:
    """Which matches are asked for; what is "" or None is left open."""

    player: str = ""
    opponent: str = ""
    purpose: str = ""
    state: str = ""
    before: int | None = None
    """Only ids below this one."""
    limit: int = PAGE

    def __post_init__(self) -> None:
        if self.purpose not in ("", *PURPOSES):
            raise ValueError(f"no purpose {self.purpose!r}; there are {', '.join(PURPOSES)}")
        if self.state not in ("", *STATES):
            raise ValueError(f"no state {self.state!r}; there are {', '.join(STATES)}")
        if not 1 <= self.limit <= 1000:
            raise ValueError(f"limit must be from 1 to 1000, got {self.limit}")


def match_list(fold: RunFold, ledger: Ledger, asked: MatchFilter, replays: Sequence[str]) -> Matches:
    found = [*_open(fold, asked), *_ended(fold, asked)]
    found = sorted((one for one in found if asked.before is None or one < asked.before), reverse=True)
    shown = found[: asked.limit]
    by_match = {number: name for name in replays if (number := _match_of(name)) is not None}
    return Matches(
        matches=[line for one in shown if (line := _line(ledger, one, by_match.get(one))) is not None],
        more=shown[-1] if len(found) > len(shown) else None,
        counts=counts(fold),
        voids=dict(fold.voids),
        replays=list(replays),
    )


def _open(fold: RunFold, asked: MatchFilter) -> list[int]:
    if asked.state not in ("", "open"):
        return []
    return [
        match.id
        for match in fold.open_matches
        if asked.purpose in ("", match.purpose)
        and all(
            not player or any(player in side.players for side in match.sides)
            for player in (asked.player, asked.opponent)
        )
    ]


def _ended(fold: RunFold, asked: MatchFilter) -> list[int]:
    if asked.state == "open":
        return []
    ids, keep = fold.ended.column("id"), np.ones(len(fold.ended), bool)
    if asked.purpose:
        keep &= fold.ended.column("purpose") == PURPOSES.index(asked.purpose)
    if asked.state:
        keep &= fold.ended.column("state") == (FINISHED if asked.state == "finished" else VOID)
    for player in filter(None, (asked.player, asked.opponent)):
        keep &= _with(fold, player)
    if asked.player and asked.player == asked.opponent:
        keep &= fold.ended.column("first") == fold.ended.column("second")
    # Only the newest are shown: the ends of matches come nearly in the order of their ids.
    return [int(one) for one in ids[keep].tolist()]


def _with(fold: RunFold, player: str) -> np.ndarray:
    if not fold.has_played(player):
        return np.zeros(len(fold.ended), bool)
    place = fold.place(player)
    found = (fold.ended.column("first") == place) | (fold.ended.column("second") == place)
    if fold.line_ups:
        larger = [match for match, players in fold.line_ups.items() if player in players]
        found |= np.isin(fold.ended.column("id"), larger)
    return np.asarray(found)


def _line(ledger: Ledger, match_id: int, replay: str | None) -> MatchLine | None:
    match = ledger.match(match_id)
    if match is None:
        return None
    end = ledger.end_of(match_id)
    result = end.result if isinstance(end, MatchFinished) else None
    wins, draws, losses = (None, None, None) if result is None or not result.pairs else _first_side(result)
    return MatchLine(
        id=match.id,
        purpose=match.purpose,
        state="open" if end is None else "void" if isinstance(end, MatchVoid) else "finished",
        sides=_sides(match, result),
        episodes=match.episodes if result is None else result.episodes,
        wins=wins,
        draws=draws,
        losses=losses,
        steps_per_episode=None if result is None else result.steps / result.episodes,
        reason=end.reason if isinstance(end, MatchVoid) else "",
        replay=replay,
    )


def _sides(match: Match, result: Result | None) -> list[MatchSide]:
    return [
        MatchSide(
            players=list(side.players),
            trains=bool(side.trainees),
            model="" if result is None else result.last_models[number],
            score=None if result is None else result.mean_score(number)[0],
        )
        for number, side in enumerate(match.sides)
    ]


def _first_side(result: Result) -> tuple[int, int, int]:
    first = [pair for pair in result.pairs if pair.side == 0]
    return (
        sum(pair.wins for pair in first),
        sum(pair.draws for pair in first),
        sum(pair.losses for pair in first),
    )


def _match_of(replay: str) -> int | None:
    """The match that a file of `ludus play` is of: human-main.3-000123.replay. Others only count theirs."""
    number = replay.rpartition(".")[0].rpartition("-")[2]
    return int(number) if replay.startswith("human-") and number.isdecimal() else None

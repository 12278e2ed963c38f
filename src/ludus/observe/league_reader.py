"""The league of a run, folded from its ledger: for tables in the terminal, `ludus league --json` and `Run.league`.

Reading a league imports and executes nothing that the run names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from ludus.data.records import MatchVoid
from ludus.league.league import League
from ludus.league.players import Player
from ludus.league.ratings import OpenSkillTable
from ludus.league.summary import LeagueSummary, summarise
from ludus.observe.league_fold import read_league
from ludus.observe.lost_matches import LossCount, LostMatches
from ludus.store.run_folder import RunFolder, RunFolderError, read_metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaguePlayer:
    """One member of a league, with the numbers that follow from its games."""

    id: str
    role: str
    parent: str | None
    model: str | None
    """The pinned weights of a frozen player, or those that a learning player began with."""
    decisions: int
    """That it was trained on."""
    active: bool
    """Whether the league still gives it matches."""
    games: float
    elo: float | None
    """Relative to the anchor of the league; None where no chain of games leads to the anchor."""
    elo_interval: tuple[float, float] | None
    """Of 95 %."""
    equilibrium: float
    """Its share of the mixture of frozen players that none of them beats."""
    score: tuple[float, float] | None
    """Mean score and standard error, in games with one team."""


def league_players(league: League, summary: LeagueSummary) -> list[LeaguePlayer]:
    """The members of a league, in the order in which they joined: the rows of every table about it."""
    active = set(league.active)
    return [
        LeaguePlayer(
            id=player.id,
            role=player.role,
            parent=player.parent,
            model=player.model,
            decisions=trained_on(league, player),
            active=player.id in active,
            games=rating.games,
            elo=rating.elo,
            elo_interval=rating.interval(),
            equilibrium=summary.equilibrium.get(player.id, 0.0),
            score=summary.scores.get(player.id),
        )
        for player, rating in zip(summary.players, summary.ratings, strict=True)
    ]


def trained_on(league: League, player: Player) -> int:
    """Decisions that a player was trained on."""
    standing = league.standings.get(player.id)
    return standing.decisions if standing else player.parent_decisions


class LeagueReader:
    """Folds the ledger of a run into its league. `follow` folds what is new."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._saved = read_league(folder)
        self.league = self._saved.league
        self._skills = OpenSkillTable(seats=min(self.league.seats_per_team))
        self._voids: Counter[str] = Counter()
        """Matches that ended without a result, by cause."""
        self._losses = LossCount()
        self._ledger = folder.ledger(read_only=True)
        self._row = 0
        self.follow()

    def follow(self) -> bool:
        """Fold new events; return whether there were any."""
        before = self._row
        for row, event in self._ledger.replay(before):
            self._row = row
            self.league.apply(event)
            self._skills.apply(event)
            if isinstance(event, MatchVoid):
                self._voids[event.reason.partition(":")[0]] += 1
        self.lost: LostMatches = self._losses.follow(self._ledger)
        self.__dict__.pop("summary", None)
        return self._row > before

    def require_players(self) -> None:
        if not self.league.players:
            raise RunFolderError(f"{self._folder.path} has no players yet: it has not started")

    @property
    def opponents(self) -> tuple[str, ...]:
        """The bots that every snapshot is measured against."""
        return self._saved.opponents

    @cached_property
    def summary(self) -> LeagueSummary:
        return summarise(self.league, measured=True, with_alpha_rank=True)

    def document(self) -> dict[str, Any]:
        """Everything as plain values: what `ludus league --json` prints."""
        return {
            **_league_document(self.league, self.summary, self._skills),
            **_health(self._folder, self._voids),
            "lost_matches": msgspec.to_builtins(self.lost),
        }

    def close(self) -> None:
        self._ledger.close()


def _health(folder: RunFolder, voids: Counter[str]) -> dict[str, Any]:
    """Faults so far, by cause, and the latest row of the training metrics."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in ("faults", "train"):
        path = folder.metrics / f"{name}.jsonl"
        rows[name] = read_metrics(path)[0] if path.exists() else []
    faults = rows["faults"]
    return {
        "faults": dict(Counter(row["class"] for row in faults)),
        "restarts": dict(Counter(row["class"] for row in faults if "started again" in row["then"])),
        "voids": dict(voids),
        "latest": rows["train"][-1] if rows["train"] else {},
    }


def _law(league: League, player: str) -> dict[str, float] | None:
    law = league.shown_law(player)
    return None if law is None else dict(law)


def _league_document(league: League, summary: LeagueSummary, skills: OpenSkillTable) -> dict[str, Any]:
    """The league as JSON: one entry per player, the payoff as matrices in the same order."""
    players = [
        {
            **msgspec.to_builtins(row),
            "weights": player.weights,
            "reason": player.reason,
            "openskill": skills.skill(player.id),
            "opponents": _law(league, player.id) if player.learning else None,
            "settings": league.settings_of(player.id) if player.learning else None,
            "lineage": msgspec.to_builtins(league.lineage.descents.get(player.id)),
        }
        for row, player in zip(league_players(league, summary), summary.players, strict=True)
    ]
    book = league.matches
    return {
        "players": players,
        "anchor": summary.anchor,
        "tags": {
            player: {
                tag: {"player": snapshot, "model": league.players[snapshot].model} for tag, snapshot in tags.items()
            }
            for player, tags in summary.tags.items()
        },
        "measures": msgspec.to_builtins(summary.measures),
        "win_rates": summary.win_rates.tolist(),
        "games": summary.games.tolist(),
        "matches": {
            "issued": book.issued,
            "finished": book.finished,
            "evaluations": book.evaluations,
            "void": book.void,
            "open": len(book.open_matches),
        },
        "settings": league.settings,
        "events": league.num_events,
        "digest": league.state_digest(),
    }

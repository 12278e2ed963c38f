"""The league of a run: as an experiment begins it, and as a run folder has it.

Reads of an experiment only what the league needs. Networks and algorithms stay unread, and torch, which takes
longer to load than a league of hundreds to be shown, unloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from ludus.config import apply_encoded, decode
from ludus.data.specs import GameSpec
from ludus.league.league import League
from ludus.league.rules import LeagueRules
from ludus.store.run_folder import RunFolder
from ludus.workers.evaluator import EvaluationConfig

_OPPONENTS = ("evaluation", "evaluation.opponents")
"""Where the experiment names the bots that snapshots are measured against."""


def league_of(game: GameSpec, rules: LeagueRules, evaluation: EvaluationConfig, seed: int) -> League:
    """Before its first event. The opponents of the evaluation are among its bots."""
    bots = dict.fromkeys((*rules.bots, *evaluation.opponents))
    return League(
        replace(rules, bots=tuple(bots)),
        num_teams=game.num_teams,
        seats_per_team=tuple(len(seats) for seats in game.seats_of_team),
        seed=seed,
        change_rules=apply_encoded,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedLeague:
    """A league before its first event, and what is shown beside it."""

    league: League
    evaluation: EvaluationConfig
    """As the run began with it."""

    @property
    def opponents(self) -> tuple[str, ...]:
        """The bots that every snapshot is measured against, by what the league has heard so far."""
        changes = {path: value for path, value in self.league.settings.items() if path in _OPPONENTS}
        whole = apply_encoded({"evaluation": self.evaluation}, changes)
        return whole["evaluation"].opponents


def read_league(folder: RunFolder) -> SavedLeague:
    """The league that a run's ledger is folded into. Imports the code that its rules and its game name."""
    experiment = msgspec.json.decode(folder.facts.experiment)
    parts = decode({name: experiment[name] for name in ("game", "league", "evaluation")})
    league = league_of(parts["game"].spec, parts["league"], parts["evaluation"], experiment["seed"])
    return SavedLeague(league=league, evaluation=parts["evaluation"])

"""Whom a person can play against: the players of a run as they are now, its models, and the game's bots."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from ludus.assemble import load_players
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.store.model_pool import UnknownModel
from ludus.store.run_folder import RunFolder
from ludus.workers.named_players import is_model_name
from ludus.workers.shelf import SeatedPlayer

BEST = "@best"


@dataclass(frozen=True, kw_only=True)
class Opponent:
    name: str
    """As it was asked for."""
    listed: str
    """As the ledger calls it: the player whose model it is."""
    seated: SeatedPlayer


class Opponents:
    """Of one run, which may be training meanwhile: every game gets the newest weights."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        league: League,
        *,
        weights: Literal["live", "average"],
        greedy: bool,
    ) -> None:
        """`league` has folded the ledger up to some row; it is brought up to date here."""
        self._experiment = experiment
        self._folder = folder
        self._league = league
        self._weights: Literal["live", "average"] = weights
        self._greedy = greedy
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Learning players first, with their best; then snapshots, the newest first; then bots."""
        with self._lock:
            self._follow()
            learning = list(self._league.standings)
            best = [f"{player}{BEST}" for player in learning if self._has(f"{player}{BEST}")]
            frozen = list(reversed(self._league.candidates.frozen()))
            return [*best, *learning, *frozen, *self._experiment.grouped_game.bots()]

    def seat(self, name: str) -> Opponent:
        """Raises ConfigError with the nearest name if there is none such."""
        with self._lock:
            self._follow()
            [seated] = load_players(
                self._experiment,
                self._folder,
                self._league,
                [name],
                weights=self._weights,
                greedy=self._greedy,
            ).values()
            return Opponent(name=name, listed=self._listed(name, seated.model), seated=seated)

    def is_taken(self, name: str) -> bool:
        """Somebody else is called so."""
        with self._lock:
            self._follow()
            return name in self._league.players or name in self._experiment.grouped_game.bots()

    def _listed(self, name: str, model: ModelId | None) -> str:
        if not is_model_name(name) or model is None:
            return name
        candidates = self._league.candidates
        pinned = [player.id for player in candidates.players if player.frozen and player.model == str(model)]
        return pinned[-1] if pinned else model.player

    def _has(self, name: str) -> bool:
        try:
            self._folder.models.resolve(name)
        except UnknownModel:
            return False
        return True

    def _follow(self) -> None:
        with self._folder.ledger(read_only=True) as ledger:
            for _, event in ledger.replay(after=self._league.num_events):
                self._league.apply(event)

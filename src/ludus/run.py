"""A run folder as a Python object: its league, measurements, agents and report.

Reading a run imports and executes nothing that it names. Only `evaluate`, `exploit`, `experiment` and
`load_agent` load the run's game and networks, and with them the code of the user that the run names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ludus.config import ConfigError
from ludus.data.records import Stop
from ludus.league.league import League
from ludus.league.summary import LeagueSummary
from ludus.observe.league_reader import LeagueReader
from ludus.observe.lost_matches import LossCount
from ludus.observe.report import report_page
from ludus.observe.run_state import gpus, look_at_run, state_without_status
from ludus.observe.terminal import league_table, payoff_table
from ludus.observe.view import RunView, ViewError
from ludus.store.files import StoreError, atomic_write
from ludus.store.run_control import Asked
from ludus.store.run_folder import RunFolder, RunFolderError, read_metrics

if TYPE_CHECKING:
    from ludus.agent import Agent
    from ludus.evaluation.best_response import ExploitRecord
    from ludus.evaluation.measures import Evaluation
    from ludus.experiment import Experiment

TABLE_WIDTH = 160
POLL_S = 0.05


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
    games: float
    elo: float | None
    """Relative to the anchor of the league; None where no chain of games leads to the anchor."""
    elo_interval: tuple[float, float] | None
    """Of 95 %."""
    equilibrium: float
    """Its share of the mixture of frozen players that none of them beats."""
    score: tuple[float, float] | None
    """Mean score and standard error, in games with one team."""


@dataclass(frozen=True, kw_only=True)
class RunLeague:
    """The league of a run at one moment; `print` shows it as a table."""

    players: tuple[LeaguePlayer, ...]
    """In the order in which they joined."""
    anchor: str
    """The player whose Elo is 0."""
    win_rates: NDArray[np.float64]
    """[players, players]: of the row against the column; 0.5 where they have not met."""
    games: NDArray[np.float64]
    """[players, players]: what the win rates rest on; older games count less."""
    equilibrium: Mapping[str, float]
    """Frozen player to its share of the mixture that none of them beats."""
    _document: Mapping[str, Any]
    _text: str

    def __getitem__(self, player: str) -> LeaguePlayer:
        for one in self.players:
            if one.id == player:
                return one
        raise KeyError(player)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: what `ludus league --json` prints."""
        return dict(self._document)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text


class Run:
    """A run folder.

    run = ludus.Run("runs/connect_four-001")
    print(run.league())
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.folder = RunFolder.open(Path(path))

    @property
    def path(self) -> Path:
        return self.folder.path

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # --- reading: nothing that the run names is imported ---

    @property
    def players(self) -> tuple[str, ...]:
        """Ids of the players of now, in the order in which they joined."""
        with closing(LeagueReader(self.folder)) as reader:
            return tuple(reader.league.candidates)

    def league(self) -> RunLeague:
        """Players, ratings with intervals, payoff and equilibrium, as the ledger has them now."""
        with closing(LeagueReader(self.folder)) as reader:
            reader.require_players()
            document, summary = reader.document(), reader.summary
            return RunLeague(
                players=tuple(_players(document)),
                anchor=summary.anchor,
                win_rates=summary.win_rates,
                games=summary.games,
                equilibrium=summary.equilibrium,
                _document=document,
                _text=_as_text(reader.league, summary, reader.opponents),
            )

    def status(self) -> dict[str, Any]:
        """How the run is: state, speed, workers, and what holds it up; what `ludus status --json` prints."""
        status = look_at_run(self.folder)
        if status is None:
            return {"run": str(self.path), "state": state_without_status(self.folder)}
        facts: dict[str, Any] = {"run": str(self.path)} | msgspec.to_builtins(status)
        facts["gpus"] = [msgspec.to_builtins(gpu) for gpu in gpus()]
        return facts | {"lost_matches": self._lost_matches()}

    def metrics(self, name: str = "train") -> list[dict[str, Any]]:
        """Rows of `metrics/NAME.jsonl`, oldest first: train, evaluations, exploits or faults."""
        path = self.folder.metrics / f"{name}.jsonl"
        known = sorted(file.stem for file in self.folder.metrics.glob("*.jsonl"))
        if name not in known and name != "train":
            raise ConfigError(f"{self.path} has no metrics {name!r}; it has {', '.join(known) or 'none yet'}")
        return read_metrics(path)[0] if path.exists() else []

    def report(self, path: str | PathLike[str] | None = None) -> Path:
        """Write the run into one HTML file that opens anywhere; default: `report.html` in its folder.

        Recorded games of a user's own game are left out, since showing them would execute its code;
        `ludus report --trust` has them.
        """
        target = self.path / "report.html" if path is None else Path(path)
        view = RunView(self.folder)
        documents: dict[str, Any] = {}
        try:
            view.refresh()
            for name in view.names():
                try:
                    documents[name] = msgspec.to_builtins(view.document(name))
                except ViewError:
                    continue  # the page says that it is missing
        finally:
            view.close()
        atomic_write(target, report_page(self.folder, documents).encode(), sync=False)
        return target

    def stop(self, *, wait_s: float = 60.0) -> None:
        """Ask the process or thread that trains the run to save and end, and wait until it has."""
        if self.folder.holder() is None:
            raise RunFolderError(f"{self.path} is not training")
        asked = Asked(self.folder.requests, Stop(), wait_s)
        deadline = time.monotonic() + wait_s
        while self.folder.holder() is not None:
            if time.monotonic() > deadline:
                asked.withdraw()
                raise RunFolderError(f"{self.path} has not ended within {wait_s:g} s")
            asked.answer()
            time.sleep(POLL_S)

    # --- these import the code that the run names ---

    def experiment(self) -> Experiment:
        """The experiment, as it was written when the run began. Imports the code that it names."""
        from ludus.runtime.assemble import load_experiment

        return load_experiment(self.folder)

    def load_agent(self, player: str = "main@best", **options: Any) -> Agent:
        """A player as an agent for your own loop; see `ludus.load_agent`."""
        from ludus.agent import load_agent

        return load_agent(self, player, **options)

    def evaluate(
        self,
        *players: str,
        games: int = 512,
        weights: Literal["average", "live"] = "average",
        greedy: bool = False,
        seed: int = 0,
        tables: int = 64,
    ) -> Evaluation:
        """Play the first player against each of the others, seats in rotation; keeps the results in the run.

        Without players: the first learning player against its first snapshot and the evaluation bots.
        """
        from ludus.evaluation.measures import evaluate

        return evaluate(self.folder, players, games=games, weights=weights, greedy=greedy, seed=seed, tables=tables)

    def exploit(
        self,
        player: str | None = None,
        *,
        method: Literal["exact", "train"] | None = None,
        weights: Literal["average", "live"] = "average",
        budget: float | None = None,
        seeds: int = 1,
        games: int = 4_000,
        runtime: str | None = None,
        quiet: bool = False,
        **overrides: Any,
    ) -> ExploitRecord:
        """How much a player can be beaten by: exactly where the game tree can be walked, else by a best
        response that is trained for it. Keeps the result in the run.

        Args:
            player: as for `load_agent`; None: the first learning player.
            method: "exact" or "train"; None: exact where possible.
            budget: decisions that each exploiter trains on.
            seeds: exploiters to train; the best of them counts.
            games: that measure the best exploiter, at least.
            overrides: settings of the exploiter's training, by path.
        """
        from ludus.evaluation.measures import exploit

        return exploit(
            self.folder,
            player,
            method=method,
            weights=weights,
            budget=budget,
            seeds=seeds,
            games=games,
            runtime=runtime,
            quiet=quiet,
            overrides=overrides,
        )

    def _lost_matches(self) -> dict[str, Any] | None:
        """None if there is no ledger that can be read."""
        try:
            with self.folder.ledger(read_only=True) as ledger:
                lost: dict[str, Any] = msgspec.to_builtins(LossCount().follow(ledger))
                return lost
        except StoreError:
            return None


def _players(document: Mapping[str, Any]) -> list[LeaguePlayer]:
    return [
        LeaguePlayer(
            id=one["id"],
            role=one["role"],
            parent=one["parent"],
            model=one["model"],
            decisions=one["decisions"],
            games=one["games"],
            elo=one["elo"],
            elo_interval=None if one["elo_interval"] is None else tuple(one["elo_interval"]),
            equilibrium=one["equilibrium"],
            score=None if one["score"] is None else tuple(one["score"]),
        )
        for one in document["players"]
    ]


def _as_text(league: League, summary: LeagueSummary, opponents: tuple[str, ...]) -> str:
    """The table of `ludus league`, without colours."""
    console = Console(width=TABLE_WIDTH, color_system=None, highlight=False, force_terminal=False)
    with console.capture() as captured:
        console.print(league_table(league, summary, opponents))
        if league.num_teams > 1:
            console.print()
            console.print(payoff_table(summary, console.width))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())

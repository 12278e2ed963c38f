"""A run folder as a Python object: its league, measurements, agents and report. Reading a run imports and executes
nothing that it names. Only `evaluate`, `yardstick`, `exploit`, `experiment` and `load_agent` load the run's game and
networks, and with them the code of the user that the run names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.config import ConfigError
from ludus.data.records import Stop
from ludus.league.summary import LeagueSummary
from ludus.observe.league_fold import LeaguePlayer, RunFold
from ludus.observe.progress import ProgressLines
from ludus.observe.report import write_report
from ludus.observe.run_state import status_document
from ludus.observe.terminal import as_text, league_table, payoff_table
from ludus.store.run_control import Asked
from ludus.store.run_folder import RunFolder, RunFolderError, read_metrics

if TYPE_CHECKING:
    from ludus.agent import Agent
    from ludus.evaluation.best_response import ExploitRecord
    from ludus.evaluation.measures import Evaluation
    from ludus.evaluation.yardstick import YardstickResult
    from ludus.experiment import Experiment

TABLE_WIDTH = 160
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RunLeague:
    """The league of a run at one moment; `print` shows it as a table."""

    players: tuple[LeaguePlayer, ...]
    """In the order in which they joined."""
    anchor: str
    """The player whose Elo is 0."""
    win_rates: NDArray[np.float64]
    """[players, players]: of the row against the column; NaN where they have met too rarely (`payoff.min_games`)."""
    games: NDArray[np.float64]
    """[players, players]: what the win rates rest on; older games count less."""
    equilibrium: Mapping[str, float]
    """Frozen player to its share of the mixture that none of them beats."""
    _document: Mapping[str, Any]
    _text: str

    def __getitem__(self, player: str) -> LeaguePlayer:
        return {one.id: one for one in self.players}[player]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: what `ludus league --json` prints."""
        return dict(self._document)

    def __repr__(self) -> str:
        return self._text


class Run:
    """A run folder.

    run = ludus.Run("runs/connect_four-001")
    print(run.league())
    """

    def __init__(self, path: str | PathLike[str], *, trust: bool = False) -> None:
        """`trust`: code that lies inside of the folder may be imported, where a method needs code."""
        self.folder = RunFolder.open(Path(path), trusted=trust or None)

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
        with closing(RunFold(self.folder)) as fold:
            fold.follow()
            return tuple(fold.league.candidates)

    def league(self) -> RunLeague:
        """Players, ratings with intervals, payoff and equilibrium, as the ledger has them now."""
        with closing(RunFold(self.folder)) as fold:
            fold.follow()
            fold.require_players()
            document, summary = fold.document(), fold.summary(measured=True)
            return RunLeague(
                players=tuple(fold.players(summary)),
                anchor=summary.anchor,
                win_rates=summary.win_rates,
                games=summary.games,
                equilibrium=summary.equilibrium,
                _document=document,
                _text=_as_text(fold, summary),
            )

    def status(self) -> dict[str, Any]:
        """State, speed, workers and bottleneck: what `ludus status --json` prints."""
        return status_document(self.folder)

    def metrics(self, name: str = "train") -> list[dict[str, Any]]:
        """Rows of `metrics/NAME.jsonl`, oldest first: train, evaluations, exploits or faults."""
        path = self.folder.metrics / f"{name}.jsonl"
        known = sorted(file.stem for file in self.folder.metrics.glob("*.jsonl"))
        if name not in known and name != "train":
            raise ConfigError(f"{self.path} has no metrics {name!r}; it has {', '.join(known) or 'none yet'}")
        return read_metrics(path)[0] if path.exists() else []

    def report(self, path: str | PathLike[str] | None = None, *, trust: bool = False) -> Path:
        """Write the run into one HTML file that opens anywhere; default: `report.html` in its folder. The report leaves
        out documents that the run does not have yet, all but the newest recorded games, and without `trust` the
        recorded games of a game of your own, since showing them executes its code."""
        from ludus.evaluation.play.replays import replay_reader

        target = self.path / "report.html" if path is None else Path(path)
        write_report(self.folder, target, replay_reader(self.folder, trusted=trust))
        return target

    def stop(self, *, wait_s: float = 60.0) -> None:
        """Ask the process or thread that trains the run to save and end, and wait until it has."""
        if self.folder.holder() is None:
            raise RunFolderError(f"{self.path} is not training")
        asked = Asked(self.folder.requests, Stop())
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

        return load_agent(self, player, **{"trust": self.folder.trusted, **options})

    def evaluate(
        self,
        *players: str,
        games: int = 512,
        weights: Literal["average", "live"] = "average",
        greedy: bool = False,
        seed: int = 0,
        tables: int = 64,
    ) -> Evaluation:
        """Play the first player against each of the others, seats in rotation; keeps the results in the run. Without
        players: the first learning player against its first snapshot and the evaluation bots."""
        from ludus.evaluation.measures import seated_matches

        if games < 1:
            raise ConfigError(f"games must be at least 1, got {games}")
        with seated_matches(self.folder, players, weights=weights, greedy=greedy) as matches:
            return matches.play(games=games, seed=seed, tables=tables)

    def yardstick(
        self, *players: str, weights: Literal["average", "live"] = "average", greedy: bool = False, seed: int = 0
    ) -> YardstickResult:
        """Ask players for a move in positions whose outcome is known, if the game has such positions: the shares of
        moves that keep the value and that are optimal. Without players: the first learning player."""
        from ludus.evaluation.yardstick import measure_yardstick

        return measure_yardstick(self.folder, players, weights=weights, greedy=greedy, seed=seed)

    def exploit(
        self,
        player: str | None = None,
        *,
        mixture: bool = False,
        method: Literal["exact", "train"] | None = None,
        weights: Literal["average", "live"] = "average",
        budget: float | None = None,
        seeds: int = 1,
        games: int = 4_000,
        start: str | None = None,
        runtime: str | None = None,
        address: str | None = None,
        keep: bool = True,
        quiet: bool = False,
        **overrides: Any,
    ) -> ExploitRecord:
        """Measure how much a player can be beaten by: exactly if the game tree can be walked, else with a best
        response that is trained for it. Keeps the result in the run.

        Args:
            player: as for `load_agent`; None: the first learning player.
            mixture: measure the equilibrium mixture of the frozen players instead of one player.
            method: "exact" or "train"; None: exact where possible.
            budget: decisions that each exploiter trains on.
            seeds: exploiters to train; the best of them counts.
            games: that measure the best exploiter, at least.
            start: address of a model that the exploiters start from: RUN#PLAYER, a file or a URL.
            address: of a Ray cluster.
            keep: whether the folders of the exploiters stay.
            quiet: print nothing.
            overrides: settings of the exploiter's training, by path.
        """
        from ludus.evaluation.measures import exploit

        return exploit(
            self.folder,
            player,
            watching=lambda training: ProgressLines(training, quiet=quiet),
            tell=(lambda line: None) if quiet else partial(print, flush=True),
            mixture=mixture,
            method=method,
            weights=weights,
            budget=budget,
            seeds=seeds,
            games=games,
            start=start,
            runtime=runtime,
            address=address,
            keep=keep,
            overrides=overrides,
            command=[f"ludus.Run({str(self.path)!r}).exploit({player!r})"],
        )


def _as_text(fold: RunFold, summary: LeagueSummary) -> str:
    """The table of `ludus league`, without colours."""
    shown: list[Any] = [league_table(fold.league, summary, fold.opponents, roles=fold.roles)]
    if fold.league.num_teams > 1:
        shown += ["", payoff_table(summary, TABLE_WIDTH)]
    return as_text(*shown, width=TABLE_WIDTH)

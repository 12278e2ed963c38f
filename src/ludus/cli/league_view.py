"""What `ludus league RUN` shows: the league that follows from the ledger, once or again and again."""

from __future__ import annotations

import json
import time
from collections import Counter

import click
import msgspec
from rich.console import Console

from ludus.cli.console import new_console
from ludus.cli.league_json import as_plain, read_health
from ludus.cli.population_table import population_table
from ludus.cli.tables import league_table, measure_lines, payoff_table
from ludus.data.records import MatchVoid
from ludus.league.league import League
from ludus.league.ratings import OpenSkillTable
from ludus.league.summary import summarise
from ludus.observe.lost_matches import LossCount
from ludus.saved_league import read_league
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder

FOLLOW_S = 2.0


class _Fold:
    """Everything that the views read off the ledger."""

    def __init__(self, league: League, *, with_skills: bool) -> None:
        self.league = league
        self.skills = OpenSkillTable(seats=min(league.seats_per_team)) if with_skills else None
        self.voids: Counter[str] = Counter()
        """Matches that ended without a result, by cause."""
        self._seen = 0

    def follow(self, ledger: Ledger) -> bool:
        """Fold what is new; whether anything was."""
        before = self._seen
        for self._seen, event in ledger.replay(before):
            self.league.apply(event)
            if self.skills is not None:
                self.skills.apply(event)
            if isinstance(event, MatchVoid):
                self.voids[event.reason.partition(":")[0]] += 1
        return self._seen > before


def show_league(folder: RunFolder, *, as_json: bool, follow: bool) -> None:
    saved = read_league(folder)
    fold = _Fold(saved.league, with_skills=as_json)
    losses = LossCount()
    console = new_console()
    with folder.ledger(read_only=True) as ledger:
        fold.follow(ledger)
        while True:
            if not saved.league.players:
                raise click.ClickException("the run has no players yet: it has not started")
            if fold.skills is not None:
                summary = summarise(saved.league, measured=True, with_alpha_rank=True)
                plain = as_plain(saved.league, summary, fold.skills) | read_health(folder, fold.voids)
                plain["lost_matches"] = msgspec.to_builtins(losses.follow(ledger))
                click.echo(json.dumps(plain))
            else:
                _show(saved.league, saved.opponents, console)
                for line in losses.follow(ledger).lines():
                    console.print(line, markup=False, soft_wrap=True)
            if not follow:
                return
            while not fold.follow(ledger):
                time.sleep(FOLLOW_S)


def _show(league: League, opponents: tuple[str, ...], console: Console) -> None:
    summary = summarise(league, measured=True)
    console.print(league_table(league, summary, opponents))
    if league.num_teams > 1:
        console.print()
        console.print(payoff_table(summary, console.width))
    if (population := population_table(league)) is not None:
        console.print()
        console.print(population)
    console.print()
    for line in measure_lines(summary):
        console.print(line)
    book = league.matches
    console.print(
        f"{book.issued:,} matches issued: {book.finished:,} finished ({book.evaluations:,} of them "
        f"evaluations), {book.void:,} void, {len(book.open_matches):,} open"
    )

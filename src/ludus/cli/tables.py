"""Rich tables that several commands show."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from ludus.league.league import League
from ludus.league.payoff import Payoff
from ludus.league.players import Player
from ludus.league.ratings import Rating
from ludus.league.summary import LeagueSummary

MOST_COLUMNS = 12


def league_table(league: League, summary: LeagueSummary, opponents: Sequence[str]) -> Table:
    """A row per player: rating with its 95 % interval, share of the equilibrium, win rates against bots."""
    one_team = league.num_teams == 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=False)
    table.add_column("player", no_wrap=True)
    table.add_column("trained on", justify="right", no_wrap=True)
    if one_team:
        table.add_column("mean score", justify="right")
    else:
        table.add_column("Elo", justify="right", no_wrap=True)
        table.add_column("games", justify="right", no_wrap=True)
        table.add_column("Nash", justify="right", no_wrap=True)
        for opponent in opponents:
            table.add_column(f"% vs {opponent}", justify="right")
        table.caption = (
            f"Elo with its 95 % interval, {summary.anchor} = 0. "
            "Nash: share of the mixture of frozen players that none of them beats."
        )
        table.caption_justify = "left"
    payoff = league.payoffs.view("evaluation")
    rows = sorted(
        zip(summary.players, summary.ratings, strict=True),
        key=lambda row: float("inf") if row[1].elo is None else -row[1].elo,
    )
    for player, rating in rows:
        cells = [player.id, _decisions(league, player)]
        if one_team:
            cells.append(_score(summary, player.id))
        else:
            share = summary.equilibrium.get(player.id)
            cells += [_elo(rating), _short(rating.games), f"{share:.0%}" if share else ""]
            cells += [_win_rate(payoff, player.id, opponent) for opponent in opponents]
        table.add_row(*cells)
    return table


def payoff_table(summary: LeagueSummary) -> Table:
    """Win rates of the row against the column, for the newest players if there are many."""
    shown = range(max(0, len(summary.players) - MOST_COLUMNS), len(summary.players))
    title = "Win rate of row against column" + (" (newest)" if len(shown) < len(summary.players) else "")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("")
    for column in shown:
        table.add_column(summary.players[column].id, justify="right")
    for row in shown:
        cells = [
            "" if row == column or not summary.games[row, column] else f"{summary.win_rates[row, column]:.2f}"
            for column in shown
        ]
        table.add_row(summary.players[row].id, *cells)
    return table


def _decisions(league: League, player: Player) -> str:
    if player.scripted:
        return "scripted"
    standing = league.standings.get(player.id)
    return _short(standing.decisions if standing else player.parent_decisions)


def _short(number: float) -> str:
    """Three digits and a unit: 12.3k, 4.56M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"


def _elo(rating: Rating) -> str:
    if rating.elo is None or rating.standard_error is None:
        return "unidentified" if rating.games else ""
    return f"{rating.elo:+.0f} ±{1.96 * rating.standard_error:.0f}"


def _score(summary: LeagueSummary, player: str) -> str:
    if player not in summary.scores:
        return ""
    mean, error = summary.scores[player]
    return f"{mean:.2f} ±{1.96 * error:.2f}"


def _win_rate(payoff: Payoff, player: str, opponent: str) -> str:
    if not payoff.games(player, opponent):
        return ""
    low, high = payoff.win_rate_interval(player, opponent)
    return f"{100 * payoff.win_rate(player, opponent):.1f} ±{50 * (high - low):.1f}"

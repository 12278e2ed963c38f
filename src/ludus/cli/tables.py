"""The tables of a league, which several commands show."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ludus.cli.console import add_numbers, new_table
from ludus.league.league import League
from ludus.league.measures import Estimate
from ludus.league.payoff import Payoff
from ludus.league.payoff_estimate import WHY_NOT
from ludus.league.players import Player
from ludus.league.ratings import Rating
from ludus.league.summary import LeagueSummary

MOST_COLUMNS = 12
MOST_FROZEN = 40
"""Rows for frozen players in the table of a large league."""
BEST_FROZEN = 3
"""Those of them that come before scripted players, where there is room for few."""


def league_table(
    league: League, summary: LeagueSummary, opponents: Sequence[str], most: int | None = None
) -> Table:
    """A row per player: rating with its 95 % interval, share of the equilibrium, win rates against bots; and
    the layer, where the summary has the measures. With room for `most` rows it has fewer frozen players, and
    explains less."""
    one_team = league.num_teams == 1
    layers = _layers(summary)
    table = new_table("player")
    table.least = ("layer", "Nash", "games")
    add_numbers(table, "trained on")
    if one_team:
        add_numbers(table, "mean score")
    else:
        add_numbers(table, "Elo", "games", "Nash", *(["layer"] if layers else []))
        add_numbers(table, *(f"% vs {opponent}" for opponent in opponents))
        table.caption = f"Elo with its 95 % interval, {summary.anchor} = 0."
        if most is None:
            table.caption += (
                " Nash: share of the mixture of frozen players that none of them beats, by mean score."
            )
        if layers:
            table.caption += (
                " Layer: those of such a mixture by win rate are 1, of the rest without them 2, ..."
            )
    payoff = league.payoffs.view("evaluation")
    rows = sorted(
        zip(summary.players, summary.ratings, strict=True),
        key=lambda row: float("inf") if row[1].elo is None else -row[1].elo,
    )
    important = _most_important(rows, most)
    if most is not None and len(important) < len(rows):
        table.caption = f"And {len(rows) - len(important)} more players. {table.caption or ''}".rstrip()
    for player, rating in important:
        cells = [player.id, _decisions(league, player)]
        if one_team:
            cells.append(_score(summary, player.id))
        else:
            share = summary.equilibrium.get(player.id)
            cells += [_elo(rating), short(rating.games), f"{share:.0%}" if share else ""]
            cells += [str(layers.get(player.id, ""))] if layers else []
            cells += [_win_rate(payoff, player.id, opponent) for opponent in opponents]
        table.add_row(*cells)
    return table


def _most_important(rows: Sequence[tuple[Player, Rating]], most: int | None) -> list[tuple[Player, Rating]]:
    """All but the weakest frozen players, where there are very many. With room for few: those who learn, the
    best frozen ones, the scripted ones, then further frozen ones."""
    frozen = [player.id for player, _ in rows if player.frozen]
    if most is None:
        return [row for row in rows if not row[0].frozen or row[0].id in frozen[:MOST_FROZEN]]

    def rank(row: tuple[Player, Rating]) -> int:
        player = row[0]
        if player.frozen:
            return 1 if player.id in frozen[:BEST_FROZEN] else 3
        return 2 if player.scripted else 0

    kept = sorted(rows, key=rank)[:most]
    return [row for row in rows if row in kept]


def measure_lines(summary: LeagueSummary) -> list[str]:
    """The league as a whole, in a few sentences."""
    lines = []
    hidden = sum(player.frozen for player in summary.players) - MOST_FROZEN
    if hidden > 0:
        lines.append(f"{hidden} weaker frozen players are not shown; --json has them all.")
    measures = summary.measures
    if measures is not None and measures.unidentified is not None:
        lines.append(f"No measures of the whole: {WHY_NOT[measures.unidentified]}.")
    elif measures is not None:
        lines.append(
            f"Who beats whom is {_within(measures.transitive_share, '.0%')} skill, the rest goes in circles; "
            f"{measures.pairs_met:.0%} of the pairs of frozen players have met."
        )
        lines.append(
            f"The equilibrium needs {_within(measures.effective_players, '.1f')} players; their diversity is "
            f"{_within(measures.effective_diversity, '.3f')}, where one best player is 0 and a circle of "
            "three 0.167."
        )
    for player, tags in summary.tags.items():
        named = [f"{player}@{tag} is {snapshot}" for tag, snapshot in tags.items()]
        lines.append(f"{', '.join(named)}.")
    return lines


def _within(estimate: Estimate | None, form: str) -> str:
    """The number and the interval that holds it."""
    assert estimate is not None, "identified measures have all their numbers"
    low, high = format(estimate.low, form), format(estimate.high, form)
    return f"{format(estimate.value, form)} ({low} to {high})"


def _layers(summary: LeagueSummary) -> dict[str, int]:
    """Frozen player -> its Nash cluster, 1 being the strongest."""
    layers = summary.measures.layers if summary.measures is not None else ()
    return {player: number for number, layer in enumerate(layers, 1) for player in layer.players}


def payoff_table(summary: LeagueSummary, width: int) -> Table:
    """Win rates of the row against the column; of more players than fit into `width`, the newest."""
    players = [player.id for player in summary.players]
    column_width = max(map(len, players)) + len(" | ")
    fitting = max(1, min(MOST_COLUMNS, width // column_width - 1))
    shown = range(max(0, len(players) - fitting), len(players))
    newest = f", the {len(shown)} newest of {len(players)}" if len(shown) < len(players) else ""
    table = new_table("")
    table.title = f"Win rate of row against column{newest}"
    add_numbers(table, *(players[column] for column in shown))
    for row in shown:
        cells = [
            "" if row == column or not summary.games[row, column] else f"{summary.win_rates[row, column]:.2f}"
            for column in shown
        ]
        table.add_row(players[row], *cells)
    return table


def _decisions(league: League, player: Player) -> str:
    if player.scripted:
        return "scripted"
    standing = league.standings.get(player.id)
    return short(standing.decisions if standing else player.parent_decisions)


def short(number: float) -> str:
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

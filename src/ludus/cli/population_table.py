"""The population of a run as a table: what its members train with, and whom they took over from."""

from __future__ import annotations

from rich.table import Table

from ludus.cli.console import add_numbers, new_table
from ludus.cli.tables import short
from ludus.league.league import League
from ludus.league.lineage import Descent


def population_table(league: League) -> Table | None:
    """A row per member, with its latest takeover; None where no role has a population."""
    populations = {
        name: role.population for name, role in league.rules.roles.items() if role.population is not None
    }
    paths = list(dict.fromkeys(space.path for one in populations.values() for space in one.search))
    members = [player for player, one in league.standings.items() if one.player.role in populations]
    if not members:
        return None
    table = new_table("member")
    add_numbers(table, *paths, "takeovers")
    table.add_column("latest", overflow="fold")
    table.title = "Population: what its members train with"
    for player in members:
        settings = league.settings_of(player)
        values = [_shown(settings.get(path)) for path in paths]
        table.add_row(player, *values, str(league.standings[player].takeovers), _latest(league, player))
    return table


def _latest(league: League, player: str) -> str:
    taken = [descent for descent in league.lineage.descents[player] if descent.donor is not None]
    return _told(taken[-1]) if taken else ""


def _told(descent: Descent) -> str:
    return f"from {descent.donor} at {short(descent.decisions)} decisions"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)

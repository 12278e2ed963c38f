"""`ludus compare`: how much the population of one run wins from that of another."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click
import msgspec
import numpy as np

from ludus.cli.options import COUNT, json_option, seed_option, tables_option
from ludus.config import code_named_by
from ludus.evaluation.cross_play import line_ups_of, payoff_of
from ludus.evaluation.entrants import RunPlayers, require_same_tables
from ludus.evaluation.tournament import Tournament
from ludus.experiment import Experiment
from ludus.league.measures import PopulationComparison, compare_populations
from ludus.league.payoff import Payoff
from ludus.league.players import with_weights
from ludus.lookup import open_run
from ludus.models.policy import use_threads
from ludus.observe.terminal import add_numbers, new_console, new_table
from ludus.runtime.assemble import load_players
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenPopulation:
    """Frozen players of one run, under names that no player of the other has."""

    run: str
    source: RunPlayers
    players: dict[str, SeatedPlayer]
    weights: dict[str, str | None]
    """Player -> the weights that it was frozen with."""
    number_frozen: int

    @property
    def experiment(self) -> Experiment:
        return self.source.experiment

    @property
    def kinds_of_weights(self) -> str:
        """In words: average, live, or both."""
        return " and ".join(sorted({str(kind) for kind in self.weights.values()}))


@click.command("compare")
@click.argument("run", type=click.Path())
@click.argument("other", type=click.Path())
@click.option("--players", "-p", type=COUNT, default=8, help="Frozen players of each run, the newest among them.")
@click.option("--episodes", "-n", type=COUNT, default=200, help="At least so many per pair.")
@tables_option
@seed_option
@json_option("Everything as one JSON object.")
@click.option("--trust", is_flag=True, help="Import code of their own that the runs name.")
def compare_command(
    run: str, other: str, players: int, episodes: int, tables: int, seed: int, as_json: bool, trust: bool
) -> None:
    """Play frozen players of RUN against frozen players of OTHER, every one against every one.

    Says the relative population performance: what RUN wins from OTHER, from -1 to 1, when each of them plays
    the best mixture of its players against the other's. Both must be runs of the same game, with two teams or
    more: with more, one player sits on one team and the other on the rest, both ways round.
    """
    use_threads(1)
    first, second = (_population(path, letter, players, trust) for path, letter in ((run, "A"), (other, "B")))
    require_same_tables(first.source, second.source)
    spec = first.experiment.game.spec
    if spec.num_teams == 1:
        raise click.UsageError(f"{spec.name} has one team: its players never meet; `ludus league` has scores")
    line_ups = pairings(list(first.players), list(second.players), spec.num_teams)
    tournament = Tournament(
        first.experiment.measured_game,
        FixedPlayers(first.players | second.players),
        line_ups,
        episodes=episodes,
        num_tables=tables,
        seed=seed,
    )
    results = tournament.run()
    payoff = payoff_of([(line_up, results[place]) for place, line_up in enumerate(line_ups)])
    comparison = compare_populations(payoff, list(first.players), list(second.players))
    show = _print_json if as_json else _show
    show(first, second, payoff, comparison)


def pairings(first: list[str], second: list[str], teams: int) -> list[tuple[str, ...]]:
    """Every player of one population against each of the other."""
    return [line_up for a in first for b in second for line_up in line_ups_of(a, b, teams)]


def spread(names: tuple[str, ...], most: int) -> tuple[str, ...]:
    """At most so many of them, evenly spread, the last one among them."""
    if len(names) <= most:
        return names
    return tuple(names[len(names) - 1 - place * len(names) // most] for place in reversed(range(most)))


def _population(path: str, letter: str, most: int, trust: bool) -> FrozenPopulation:
    folder = open_run(path)
    code = code_named_by(msgspec.json.decode(folder.facts.experiment))
    if code and not trust:
        raise click.UsageError(f"{folder.path} names {code[0]}: --trust imports it, and plays with it")
    source = RunPlayers(folder)
    experiment, league = source.experiment, source.league
    frozen = league.candidates.frozen()
    if not frozen:
        raise click.ClickException(f"{folder.path} has no frozen players to compare yet")
    seated = load_players(experiment, folder, league, spread(frozen, most))
    return FrozenPopulation(
        run=str(folder.path),
        source=source,
        players={f"{letter}/{name}": player for name, player in seated.items()},
        weights={f"{letter}/{name}": league.players[name].played_weights for name in seated},
        number_frozen=len(frozen),
    )


def _print_json(
    first: FrozenPopulation, second: FrozenPopulation, payoff: Payoff, comparison: PopulationComparison
) -> None:
    estimate = comparison.performance
    document = {
        "runs": [
            {
                "run": one.run,
                "players": [name[2:] for name in one.players],
                "weights": list(one.weights.values()),
                "frozen": one.number_frozen,
            }
            for one in (first, second)
        ],
        "performance": estimate.value if estimate else None,
        "performance_interval": [estimate.low, estimate.high] if estimate else None,
        "unidentified": comparison.unidentified,
        "win_rates": [payoff.win_rates(name, list(second.players)).tolist() for name in first.players],
        "games": [payoff.games_against(name, list(second.players)).tolist() for name in first.players],
    }
    click.echo(json.dumps(document))


def _show(first: FrozenPopulation, second: FrozenPopulation, payoff: Payoff, comparison: PopulationComparison) -> None:
    console = new_console()
    for letter, one in (("A", first), ("B", second)):
        console.print(
            f"{letter} is {one.run}: {len(one.players)} of {one.number_frozen} frozen players, "
            f"{one.kinds_of_weights} weights"
        )
    if first.kinds_of_weights != second.kinds_of_weights:
        console.print("Not like with like: part of a difference may be that of live and averaged weights.")
    columns = list(second.players)
    table = new_table("win rate of row")
    add_numbers(table, *(with_weights(name, second.weights[name]) for name in columns), "mean")
    for name in first.players:
        rates = payoff.win_rates(name, columns)
        table.add_row(
            with_weights(name, first.weights[name]), *(f"{rate:.2f}" for rate in rates), f"{np.mean(rates):.2f}"
        )
    console.print()
    console.print(table)
    console.print()
    estimate = comparison.performance
    if estimate is None:
        console.print("They cannot be told apart: every pair is even.")
        return
    console.print(
        f"Relative population performance of A: {estimate.value:+.3f} ({estimate.low:+.3f} to "
        f"{estimate.high:+.3f}), from -1 to 1: what A wins from B when each plays its best mixture."
    )

"""`ludus league` on a population: settings and takeovers of each member, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Ludus

POPULATION = """
from dataclasses import replace

from ludus.league.population import Population
from ludus.league.rules import LeagueRules, Role
from ludus.league.matchmaking import UniformPast
from ludus.league.population import LogUniform
from ludus.recipes import rps

search = (LogUniform(path="learner.learning_rate", low=1e-6, high=1e-2),)
population = Population(search=search, every=400, min_games=10, confidence=0.5)
role = Role(count=3, matchmaking=UniformPast(over="scripted"), population=population)


def experiment():
    return replace(rps.experiment(), league=LeagueRules(roles={"main": role}, bots=("rock",)))
"""
SMALL = {
    "runtime": "serial",
    "budget": "4000",
    "actor.num_tables": "32",
    "actor.matches": "2",
    "actor.episodes_per_table": "4",
    "learner.batch_size": "400",
    "evaluation.episodes": "4",
    "evaluation.ladder": "0",
}
CHANGES = [part for path, value in SMALL.items() for part in ("--set", f"{path}={value}")]


def test_a_population_is_shown_with_its_lineage(ludus: Ludus) -> None:
    Path("my_population.py").write_text(POPULATION)
    assert ludus("train", "my_population.py:experiment", "--run", "run", "--quiet", *CHANGES).code == 0
    plain = json.loads(ludus("league", "run", "--json").out)
    members = {one["id"]: one for one in plain["players"] if one["role"] == "main"}
    assert set(members) == {"main_0", "main_1", "main_2"}
    assert all(one["lineage"] is None for one in plain["players"] if one["id"] not in members)
    taken = [descent for one in members.values() for descent in one["lineage"] if descent["donor"]]
    assert taken
    assert {descent["donor"] for descent in taken} <= set(members)
    for one in members.values():
        assert (one["lineage"][0]["decisions"], one["lineage"][0]["donor"]) == (0, None)
        assert one["lineage"][-1]["settings"] == one["settings"]
    text = ludus("league", "run").out
    assert "Population: what its members train with" in text
    assert "learner.learning_rate" in text
    assert "from main_" in text


def test_a_league_without_a_population_shows_none(ludus: Ludus, trained_rps: Path) -> None:
    run = str(trained_rps)
    assert "Population" not in ludus("league", run).out
    (member,) = (one for one in json.loads(ludus("league", run, "--json").out)["players"] if one["role"] == "main")
    assert member["settings"] == {}
    assert [descent["donor"] for descent in member["lineage"]] == [None]


def test_a_wrong_path_is_bad_usage_with_the_nearest_name(ludus: Ludus) -> None:
    Path("my_typo.py").write_text(POPULATION.replace("learner.learning_rate", "learner.learning_rat"))
    code, _, err = ludus("train", "my_typo.py:experiment", "--run", "run")
    assert code == 2
    assert "did you mean 'learner.learning_rate'?" in err
    assert "Traceback" not in err

"""Which settings may change while a run trains, and the experiment that follows from the changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import ConfigError, decode, encode, paths
from ludus.data.records import RunStarted, SettingsChanged
from ludus.data.schedules import Linear, LiveField
from ludus.experiment import Experiment
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.league import League
from ludus.league.matchmaking import PFSP, Live, Mixture, SelfPlay
from ludus.league.population import LogUniform, Population
from ludus.league.rules import LeagueRules, Role
from ludus.lookup import find_experiment, recipe_names
from ludus.runtime.assemble import new_league
from ludus.runtime.settings import checked_settings, configured, effective, is_live

MIXED = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
EXPERIMENT = Experiment(
    name="tiny", game=Kuhn(), budget=1000, league=LeagueRules(roles={"main": Role(matchmaking=MIXED)}, bots=("random",))
)
BRANCHES = "league.roles.main.matchmaking.branches"


def changed(*changes: SettingsChanged, experiment: Experiment = EXPERIMENT) -> League:
    league = new_league(experiment)
    league.apply(RunStarted(0))
    for event in league.initial_events():
        league.apply(event)
    for change in changes:
        league.apply(change)
    return league


def follow(*texts: dict[str, str], experiment: Experiment = EXPERIMENT) -> Experiment:
    """What follows from one edit after the other, each written down and read again."""
    league = changed(experiment=experiment)
    for one in texts:
        league.apply(SettingsChanged(checked_settings(effective(experiment, league), one)))
    return effective(experiment, league)


@dataclass(frozen=True, kw_only=True)
class _Inner:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class _Outer:
    fixed: _Inner = _Inner()
    free: LiveField[_Inner] = _Inner()


def test_a_mark_holds_for_all_that_is_inside() -> None:
    marks = {setting.path: setting.live for setting in paths(_Outer())}
    assert marks == {"fixed": False, "fixed.size": False, "free": True, "free.size": True}
    assert {setting.path: setting.type_name for setting in paths(_Outer())}["free"] == "_Inner"


@pytest.mark.parametrize(
    "path",
    [
        "learner.learning_rate",
        "learner.epochs",
        "learner.adam_beta1",
        "algorithm.entropy",
        "algorithm",
        "evaluation.episodes",
        f"{BRANCHES}.0.0",
        "league.roles.main.promotion",
        "league.roles.main.after_reset.clear_payoff",
        "league.payoff.decay",
        "league.decide_on",
        "league.roles.+new",
        "budget",
        "checkpoint_every",
    ],
)
def test_these_may_change(path: str) -> None:
    assert is_live(EXPERIMENT, path)


@pytest.mark.parametrize(
    "path",
    [
        *("game", "model.hidden", "seed", "runtime", "name", "actor.num_tables", "learner.batch_size"),
        *("league.roles", "league.roles.main", "league.roles.main.count", "league.bots", "no.such", ""),
        "league.roles.+new.count",
    ],
)
def test_these_may_not(path: str) -> None:
    assert not is_live(EXPERIMENT, path)


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_has_its_rates_live(recipe: str) -> None:
    try:
        experiment = find_experiment(recipe, ())
    except ConfigError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    live = {setting.path for setting in paths(experiment) if setting.live}
    assert {"learner.learning_rate", "budget", "evaluation.episodes"} <= live


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"learner.learning_rate": "1e-4"}, replace(EXPERIMENT.learner, learning_rate=1e-4)),
        (
            {"learner.learning_rate": "{type: Linear, start: 1e-3, end: 0}"},
            replace(EXPERIMENT.learner, learning_rate=Linear(start=1e-3, end=0)),
        ),
        ({"algorithm.entropy": "0.5", "algorithm.dual_clip": "3"}, PPO(entropy=0.5, dual_clip=3)),
        ({"algorithm": "MagnetPolicyGradient"}, MagnetPolicyGradient()),
        ({"evaluation.opponents": "random,equilibrium"}, ("random", "equilibrium")),
        (
            {f"{BRANCHES}.0.0": "0.2", f"{BRANCHES}.1.0": "0.8", f"{BRANCHES}.1.1.weighting": "2.5"},
            Mixture(branches=((0.2, SelfPlay()), (0.8, PFSP(weighting=2.5)))),
        ),
        ({"league.roles.+new": "{matchmaking: {type: Live, role: main}}"}, Role(matchmaking=Live(role="main"))),
        ({"budget": "2e6"}, 2_000_000),
    ],
)
def test_what_is_typed_is_in_force_after_it_was_written_down(texts: dict[str, str], expected: object) -> None:
    now = follow(texts)
    found = [now.learner, now.algorithm, now.evaluation.opponents, now.budget]
    found += [role.matchmaking for role in now.league.roles.values()] + list(now.league.roles.values())
    assert expected in found
    assert decode(encode(now)) == now


def test_later_changes_win_over_earlier_ones_above_and_below() -> None:
    linear = {"learner.learning_rate": "{type: Linear, start: 1e-3, end: 0}"}
    now = follow(linear, {"learner.learning_rate.end": "1e-5"}, {"learner.learning_rate": "0.5"})
    assert now.learner.learning_rate == 0.5
    now = follow({"learner.learning_rate": "0.5"}, linear, {"learner.learning_rate.end": "1e-5"})
    assert now.learner.learning_rate == Linear(start=1e-3, end=1e-5)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"learner.batch_size": "9"}, ["learner.batch_size cannot", "learner.epochs", "--resume --set"]),
        ({"league.roles.main.count": "2"}, ["main.count cannot", "league.roles.main.matchmaking"]),
        ({"learner.lerning_rate": "9"}, ["'learner.learning_rate'"]),
        ({"learner.learning_rate": "many"}, ["learner.learning_rate", "many"]),
        ({"learner.epochs": "0"}, ["epochs", "at least 1"]),
        ({f"{BRANCHES}.0.0": "0.2"}, ["sum to 1"]),
        ({"algorithm": "{type: MagnetPolicyGradient, magnet: {decay: 0.5}}"}, ["magnet", "another run"]),
        ({"evaluation.opponents": "nobody"}, ["nobody"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(texts: dict[str, str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        checked_settings(EXPERIMENT, texts)
    assert [part for part in named if part not in str(error.value)] == []


def test_one_player_has_its_own_learner_and_algorithm_only() -> None:
    assert checked_settings(EXPERIMENT, {"learner.epochs": "7"}, "main") == {"learner.epochs": 7}
    with pytest.raises(ConfigError, match="budget cannot differ between players"):
        checked_settings(EXPERIMENT, {"budget": "7"}, "main")


def test_a_player_trains_with_what_is_for_all_and_what_is_its_own() -> None:
    league = changed(
        SettingsChanged({"learner.epochs": 7, "budget": 99, "league.payoff.decay": 0.9}),
        SettingsChanged({"learner.learning_rate": 0.5}, player="main"),
        SettingsChanged({"learner.learning_rate": 0.1}),
    )
    algorithm, learner, budget = configured(EXPERIMENT, league.settings_of("main"))
    assert (algorithm, budget) == (EXPERIMENT.algorithm, 99)
    assert learner == replace(EXPERIMENT.learner, epochs=7, learning_rate=0.5)
    assert effective(EXPERIMENT, league).learner.learning_rate == 0.1


def test_what_a_player_trains_with_is_not_judged_by_rules_that_have_changed_since() -> None:
    """The rules of the league that are written in the run folder may be old; its fold has those of now."""
    search = (LogUniform(path="learner.learning_rate.start", low=1e-5, high=1e-2),)
    role = replace(EXPERIMENT.league.roles["main"], population=Population(search=search, every=100))
    written = replace(
        EXPERIMENT,
        learner=replace(EXPERIMENT.learner, learning_rate=Linear(start=1e-3, end=0)),
        league=replace(EXPERIMENT.league, roles={"main": role}),
    )
    _, learner, budget = configured(written, {"learner.learning_rate": 1e-4, "budget": 2000})
    assert (learner.learning_rate, budget) == (1e-4, 2000)


def test_a_search_cannot_change_while_actors_search() -> None:
    searching = replace(EXPERIMENT, game=TicTacToe(), algorithm=GumbelAlphaZero())
    after = follow({"algorithm.value_weight": "0.5"}, experiment=searching)
    assert after.algorithm == GumbelAlphaZero(value_weight=0.5)
    with pytest.raises(ConfigError, match=r"algorithm\.search: actors search as the run began"):
        follow({"algorithm.search.simulations": "8"}, experiment=searching)
    with pytest.raises(ConfigError, match=r"algorithm\.search: actors search as the run began, with None"):
        follow({"algorithm": "GumbelAlphaZero"}, experiment=replace(searching, algorithm=PPO()))

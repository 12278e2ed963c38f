"""The runtime of a new run: chosen by the GPU of the machine (made up here) and what the experiment asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ludus.training
from ludus import PPO, Experiment, apply_overrides, load_experiment
from ludus.config import ConfigError, encode
from ludus.data.schedules import Linear, Warmup
from ludus.league.promotion import AnyOf, BySteps, ByTime, ByWinRate
from ludus.models.policy import Gpu
from ludus.runtime.device import layout_of, require_on_device
from ludus.runtime.placement import Placed, is_given, place
from ludus.store.run_folder import RunFolder
from ludus.training import Plan, require_same_experiment
from ludus.workers.config import LearnerConfig

H200 = Gpu("NVIDIA H200", 139 * 2**30)
SMALL = Gpu("Small", 8 * 2**30)


def placed(recipe: str, gpu: Gpu | None, runtime: str | None = None, **given: Any) -> Placed:
    written = load_experiment(recipe)
    settings = {path.replace("__", "."): value for path, value in given.items()}
    asked = apply_overrides(written, settings if runtime is None else settings | {"runtime": runtime})
    return place(asked, written_for=written.runtime, gpu=gpu, given=settings, budget=written.budget)


@pytest.mark.parametrize("runtime", [None, "auto", "serial", "local", "device"])
def test_without_a_gpu_nothing_changes(runtime: str | None) -> None:
    chosen = placed("connect_four", None, runtime)
    assert chosen.told == ()
    expected = runtime if runtime not in (None, "auto") else "local"
    assert chosen.experiment == replace(load_experiment("connect_four"), runtime=expected)


def test_a_recipe_that_fits_goes_to_the_gpu_in_its_size() -> None:
    chosen = placed("connect_four", H200)
    runtime, scaled = chosen.told
    assert "device, since all of this experiment fits the GPU (NVIDIA H200); --runtime local" in runtime
    assert "131,072 tables, batches of 2,097,152" in scaled
    experiment = chosen.experiment
    require_on_device(experiment)
    layout = layout_of(experiment, 1)
    assert (layout.num_blocks, layout.num_tables, layout.steps) == (16, 131_072, 16)
    assert experiment.learner.minibatch_size == 2**19
    assert experiment.learner.learning_rate == Warmup(then=Linear(start=3e-4, end=3e-5))
    assert 15 < experiment.openings.moves < 30
    assert experiment.openings.share == 0.75
    assert "75% of training episodes after 0 to" in scaled
    assert experiment.actor.episodes_per_table >= 100
    assert experiment.actor.episodes_per_table % 2 == 0
    smaller = placed("connect_four", SMALL).experiment
    assert smaller.actor.num_tables == 32_768
    assert smaller.learner.batch_size == 2**19


def test_a_network_over_maps_gets_fewer_tables_and_a_run_of_minutes() -> None:
    """At 150,000 decisions a second."""
    for recipe, players in (("skirmish", 1), ("skirmish_alphastar", 3)):
        experiment = placed(recipe, H200).experiment
        layout = layout_of(experiment, players)
        assert experiment.runtime == "device"
        assert 1_024 <= layout.num_tables <= 4_096
        assert layout.num_blocks == 32 * players
        assert layout.steps >= 32
        assert 5 < experiment.budget / 150_000 / 60 < 15
        assert experiment.actor.episodes_per_table <= 4
        assert placed(recipe, SMALL).experiment.actor.num_tables >= 384


def test_numbers_of_decisions_keep_their_share_of_the_budget() -> None:
    before, after = load_experiment("connect_four"), placed("connect_four", H200).experiment
    scale = after.budget / before.budget
    assert after.budget == 20_000 * after.learner.batch_size
    was, now = before.league.roles["main"].promotion, after.league.roles["main"].promotion
    assert isinstance(was, BySteps)
    assert isinstance(now, BySteps)
    assert now.every == was.every * scale
    assert after.checkpoint_every == before.checkpoint_every * scale
    less = placed("connect_four", H200, budget=10**9).experiment
    assert less.budget == 10**9
    assert less.league.roles["main"].promotion == BySteps(every=10**8)


@pytest.mark.parametrize(("recipe", "players"), [("skirmish", 1), ("skirmish_alphastar", 3), ("connect_four", 1)])
def test_a_small_budget_gets_fewer_tables_not_fewer_updates(recipe: str, players: int) -> None:
    budget = 5_000_000 * players
    experiment = placed(recipe, H200, budget=budget).experiment
    assert experiment.budget == budget
    assert 150 <= budget / players / experiment.learner.batch_size < 1_000
    assert experiment.actor.num_tables < placed(recipe, H200).experiment.actor.num_tables
    layout_of(experiment, players)
    of_player = budget / players
    of_match = experiment.actor.num_tables / experiment.actor.matches * experiment.actor.episodes_per_table
    assert of_player / (of_match * 2 * experiment.game.spec.max_length) > 20
    assert placed(recipe, H200, budget=10**13).experiment.actor == placed(recipe, H200).experiment.actor


def test_rules_within_rules_are_scaled_and_other_counts_are_not() -> None:
    rule = AnyOf(rules=(BySteps(every=1_000), ByTime(seconds=5.0), ByWinRate(min_decisions=10, max_decisions=None)))
    written = load_experiment("tic_tac_toe_population")
    main = replace(written.league.roles["main"], promotion=rule)
    written = replace(written, league=replace(written.league, roles={"main": main}), budget=1_000_000)
    with pytest.raises(ConfigError, match="may choose the bot"):
        require_on_device(replace(written, runtime="device"))
    alone = apply_overrides(written, {"league.roles.main.matchmaking": "{type: Live, role: main}"})
    after = place(alone, written_for="auto", gpu=H200, given=(), budget=1_000_000).experiment
    scale = after.budget / 1_000_000
    assert after.league.roles["main"].promotion == AnyOf(
        rules=(BySteps(every=round(1_000 * scale)), ByTime(seconds=5.0), ByWinRate(min_decisions=round(10 * scale)))
    )
    population = after.league.roles["main"].population
    assert population is not None
    assert population.every == round(25_000 * scale)
    assert after.actor.matches == 4 * 16


def test_what_the_user_has_set_stays() -> None:
    given = {
        "actor__num_tables": 1_000,
        "learner__batch_size": 50_000,
        "learner__learning_rate": 1e-3,
        "league__roles__main__promotion__every": 123,
        "checkpoint_every": 77,
    }
    experiment = placed("connect_four", H200, **given).experiment
    assert experiment.runtime == "device"
    assert experiment.actor.num_tables == 1_000
    assert experiment.learner.batch_size == 50_000
    assert experiment.learner.minibatch_size == 12_500
    assert experiment.learner.learning_rate == 1e-3
    assert experiment.league.roles["main"].promotion == BySteps(every=123)
    assert experiment.checkpoint_every == 77
    own = {"league.roles.*.promotion", "league", "algorithm.entropy"}
    assert is_given("league.roles.main.promotion", own - {"league"})
    assert is_given("league.turn", own)
    assert is_given("algorithm", own)
    assert not is_given("learner.batch_size", own)


@pytest.mark.parametrize(
    ("recipe", "given", "reason"),
    [
        ("skirmish_3v3", {}, "game: skirmish 3v3 has no tensor game"),
        ("connect_four", {"actors": 3}, "actors is not for the device runtime"),
        ("tic_tac_toe_population", {}, "may choose the bot"),
    ],
)
def test_what_does_not_fit_stays_on_the_cpu_and_says_why(recipe: str, given: dict[str, Any], reason: str) -> None:
    chosen = placed(recipe, H200, **given)
    [told] = chosen.told
    assert "runtime:    local, on the CPU although there is a GPU (NVIDIA H200)" in told
    assert reason in told
    assert chosen.experiment == replace(apply_overrides(load_experiment(recipe), given), runtime="local")
    with pytest.raises(ConfigError, match=reason):
        placed(recipe, H200, "device", **given)


def test_who_asks_for_another_runtime_gets_it() -> None:
    for runtime in ("serial", "local", "ray"):
        assert placed("connect_four", H200, runtime).experiment == replace(
            load_experiment("connect_four"), runtime=runtime
        )
    assert placed("connect_four", H200, "device").experiment == placed("connect_four", H200).experiment


def test_an_experiment_written_for_the_device_is_taken_as_it_is() -> None:
    written = replace(load_experiment("kuhn"), runtime="device")
    assert place(written, written_for="device", gpu=H200, given=(), budget=1).experiment == written


def test_every_recipe_that_fits_is_trainable_in_its_size() -> None:
    for recipe in ("kuhn", "leduc", "blotto", "rps", "connect_four_raw"):
        experiment = placed(recipe, H200).experiment
        assert experiment.runtime == "device", recipe
        assert experiment.actor.num_tables > 100_000
        assert isinstance(experiment.algorithm, PPO) or experiment.learner.batch_size > 10**6
        assert isinstance(experiment.learner, LearnerConfig)
        hides = recipe != "connect_four_raw"
        assert (experiment.openings.moves == 0) == hides


def test_a_run_keeps_the_size_of_the_machine_that_it_began_on(tmp_path: Path) -> None:
    """A job that starts again elsewhere, or without a GPU, asks for the same experiment."""
    scaled = placed("kuhn", SMALL).experiment
    RunFolder.create(tmp_path / "run", encode(scaled), seed=0, command=())
    folder = RunFolder.open(tmp_path / "run")
    require_same_experiment(folder, "kuhn", {})
    with pytest.raises(ConfigError, match=r"learner\.batch_size"):
        require_same_experiment(folder, "kuhn", {"learner.batch_size": "77"})
    with pytest.raises(ConfigError, match="game"):
        require_same_experiment(folder, "leduc", {})
    local: Experiment = replace(load_experiment("kuhn"), runtime="local")
    RunFolder.create(tmp_path / "local", encode(local), seed=0, command=())
    require_same_experiment(RunFolder.open(tmp_path / "local"), "kuhn", {})


def test_a_plan_is_made_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ludus.training, "find_gpu", lambda asked: None if asked == "cpu" else H200)
    plan = Plan.make("connect_four", settings={"budget": "1e9"})
    assert plan.initial.experiment.runtime == "device"
    assert plan.initial.experiment.budget == 10**9
    assert plan.initial.experiment.league.roles["main"].promotion == BySteps(every=10**8)
    assert [line.split(":")[0] for line in plan.told] == ["runtime", "scaled"]
    assert [line.split(":")[0] for line in Plan.make("connect_four_raw", settings={"actors": "2"}).told] == ["runtime"]
    for settings in ({"learner.device": "cpu"}, {"runtime": "local"}):
        plan = Plan.make("connect_four", settings=settings)
        assert plan.initial.experiment.runtime == "local"
        assert plan.initial.experiment.budget == 5_000_000
        assert plan.told == ()
    with pytest.raises(ConfigError, match="runtime"):
        Plan.make("connect_four", settings={"runtime": "gpu"})


@pytest.mark.parametrize("given", [{}, {"actor__num_tables": 2_112, "learner__batch_size": 32_768}])
def test_a_small_budget_still_has_many_matches(given: dict[str, Any]) -> None:
    """Matches at many tables would be a handful, so that a player never meets some of its opponents."""
    budget, decisions_of_seat = 3_000_000, 90
    actor = placed("skirmish", H200, "device", budget=budget, **given).experiment.actor
    assert actor.num_tables % actor.matches == 0
    of_match = actor.num_tables // actor.matches * actor.episodes_per_table * 2 * decisions_of_seat
    assert budget / of_match > 120
    board = placed("connect_four", H200, "device", budget=100_000_000).experiment.actor
    assert board.episodes_per_table < 50
    assert board.num_tables // board.matches < 131_072 // 16


@pytest.mark.parametrize("budget", [20_000, 1_000_000])
@pytest.mark.parametrize("tables", [16, 24, 64])
def test_few_tables_of_the_user_are_cut_into_matches_of_two_at_least(tables: int, budget: int) -> None:
    """A match in which seats move in turn needs as many."""
    actor = placed("connect_four", H200, "device", actor__num_tables=tables, budget=budget).experiment.actor
    assert actor.num_tables == tables
    assert tables // actor.matches >= 2

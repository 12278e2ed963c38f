"""Whole runs in one process: settings, players, metrics, resets, middleware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_runs import EXPERIMENTS, LEAGUE_PLAY, assert_same, check_ledger, events_of, open_training, run_whole, tiny

from ludus.config import encode
from ludus.data.records import LearnerProgress, MatchVoid, ModelId, PlayerAdded, PlayerReset
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.game import Turn
from ludus.games.lift import Lifted
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.worker import Progress, StopTraining, Worker


def with_roles(experiment: Experiment, **roles: Role) -> Experiment:
    return replace(experiment, league=replace(experiment.league, roles=roles))


def test_several_learning_players(tmp_path: Path) -> None:
    experiment = with_roles(tiny(ConnectFour(), budget=800), main=Role(count=2, matchmaking=LEAGUE_PLAY), other=Role())
    with closing(open_training(tmp_path, experiment)) as training:
        training.run()
    assert set(training.learner.players) == {"main_0", "main_1", "other"}
    decisions = {player: trained.decisions for player, trained in training.learner.players.items()}
    assert min(decisions.values()) > 100
    weights = [trained.weights() for trained in training.learner.players.values()]
    assert any(not np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    first_and_final = {f"{player}.{number}" for player in decisions for number in (1, 2)}
    assert set(training.league.candidates.frozen()) == first_and_final
    check_ledger(tmp_path)


@pytest.mark.parametrize("batch_size", [32, 128])
def test_batch_size_sets_the_decisions_of_an_update(batch_size: int, tmp_path: Path) -> None:
    base = tiny(ConnectFour(), budget=600)
    run_whole(tmp_path, replace(base, learner=replace(base.learner, batch_size=batch_size)))
    steps = [event.decisions for event in events_of(tmp_path) if isinstance(event, LearnerProgress)]
    sizes = np.diff(steps)[1:]  # the first batch has no open decisions of older weights
    assert np.all(sizes <= batch_size + 8)
    assert np.mean(sizes) > batch_size / 2


def test_many_players_fit_into_the_slots(tmp_path: Path) -> None:
    """Every player may have a batch half collected, and short evaluations cut trajectories short."""
    base = tiny(Kuhn(), budget=700)
    experiment = replace(
        with_roles(base, main=Role(count=6, promotion=BySteps(every=40))),
        actor=ActorConfig(num_tables=8, matches=4, episodes_per_table=2, unroll_length=32),
        learner=replace(base.learner, batch_size=100, buffer_size=100),
    )
    run_whole(tmp_path, experiment)
    check_ledger(tmp_path)


def test_models_in_memory_changes_no_result(tmp_path: Path) -> None:
    base = EXPERIMENTS["connect_four"]
    many = run_whole(tmp_path / "many", base)
    few = run_whole(tmp_path / "few", replace(base, actor=replace(base.actor, models_in_memory=1)))
    assert_same(many, few)


def test_bots_to_evaluate_against_need_not_be_in_the_league(tmp_path: Path) -> None:
    experiment = tiny(
        ConnectFour(),
        league=LeagueRules(roles={"main": Role()}),
        evaluation=EvaluationConfig(opponents=("random", "alpha_beta_2"), episodes=2),
        budget=200,
    )
    with closing(open_training(tmp_path, experiment)) as training:
        training.run()
    evaluation = training.league.payoffs.view("evaluation")
    assert all(evaluation.games("main.1", bot) > 0 for bot in ("random", "alpha_beta_2"))


def test_a_role_starts_from_the_model_that_it_names(tmp_path: Path) -> None:
    experiment = tiny(ConnectFour(), budget=200)
    RunFolder.create(tmp_path, encode(experiment), seed=0, command=())
    folder = RunFolder.open(tmp_path)
    with closing(open_training(tmp_path / "donor", replace(experiment, seed=99))) as donor:
        weights = donor.learner.players["main"].weights()
    folder.models.publish(ModelId("imported", 0, 7), weights, parent=None, facts={})
    started = with_roles(
        experiment, main=Role(start="imported:0:7", reset_probability=1.0, promotion=BySteps(every=64))
    )
    with closing(serial_training(started, folder)) as training:
        for name, array in training.learner.players["main"].weights().items():
            assert np.array_equal(array, weights[name])
        training.run()
    resets = [event for event in events_of(tmp_path) if isinstance(event, PlayerReset)]
    assert resets
    assert {event.model for event in resets} == {"imported:0:7"}


def test_metrics_have_a_line_per_update(tmp_path: Path) -> None:
    run_whole(tmp_path, EXPERIMENTS["connect_four"])
    records, _ = read_metrics(tmp_path / "metrics" / "train.jsonl")
    progress = [event for event in events_of(tmp_path) if isinstance(event, LearnerProgress) and event.step]
    assert [record["decisions"] for record in records] == [event.decisions for event in progress]
    wanted = {"main/policy_loss", "main/stale", "main/refused", "main/dropped", "episodes", "matches"}
    assert all(wanted <= record.keys() for record in records)


# --- games that give no numbers ---


class SometimesNothing:
    """One seat, two turns; every third episode pays what is no number, which then is its score too."""

    spec = GameSpec.symmetric(
        name="sometimes_nothing",
        num_seats=1,
        observation=ObservationSpec(parts={"turn": Vector(size=1)}),
        action=ActionSpec(heads={"move": Choice(num=2)}),
        max_length=2,
        zero_sum=False,
    )

    def reset(self, seed: int) -> Turn:
        self._turn, self._pays = 0, float("nan") if seed % 3 == 0 else 1.0
        return Turn(observations={0: np.zeros(1, np.float32)})

    def step(self, actions: Mapping[int, Any]) -> Turn:
        self._turn += 1
        observation = np.full(1, self._turn, np.float32)
        return Turn(observations={0: observation}, reward=(self._pays,), over=self._turn == 2)


def test_a_game_that_gives_no_numbers_does_not_spoil_the_run(tmp_path: Path) -> None:
    experiment = tiny(
        Lifted(SometimesNothing),
        model=ActorCritic(hidden=(8,), value_normalisation=True),
        actor=ActorConfig(num_tables=4, matches=4, episodes_per_table=2, unroll_length=2),
        evaluation=EvaluationConfig(opponents=(), episodes=2),
    )
    with closing(open_training(tmp_path, experiment)) as training:
        assert training.run() == FINISHED
    main = training.learner.players["main"]
    assert main.refused > 50
    assert main.skipped == 0
    assert all(np.isfinite(array).all() for array in training.learner.save()[0].values())
    void = Counter(event.reason for event in check_ledger(tmp_path) if isinstance(event, MatchVoid))
    assert void["a score is not finite"] > 5
    assert training.league.matches.finished > 5


# --- snapshots and resets ---


def test_a_reset_comes_once_after_the_snapshot_that_asked_for_it(tmp_path: Path) -> None:
    experiment = with_roles(
        tiny(ConnectFour(), budget=450),
        main=Role(matchmaking=LEAGUE_PLAY, reset_probability=1.0, promotion=BySteps(every=150)),
    )
    training = open_training(tmp_path, experiment)
    initial = training.learner.players["main"].weights()
    began_again: list[bool] = []
    games: list[float] = []
    reset = training.learner.reset

    def noting(event: PlayerReset) -> None:
        games.append(sum(training.league.payoff.games("main", o) for o in training.league.candidates))
        reset(event)
        now = training.learner.players["main"].weights()
        began_again.append(all(np.array_equal(now[name], initial[name]) for name in now))

    training.learner.reset = noting  # type: ignore[method-assign]
    with closing(training):
        training.run()
    story = [
        event
        for event in check_ledger(tmp_path)
        if isinstance(event, PlayerReset) or (isinstance(event, PlayerAdded) and event.role == "frozen")
    ]
    assert isinstance(story[0], PlayerAdded)  # the initial snapshot, which asks for nothing
    pairs = list(zip(story[1::2], story[2::2], strict=False))
    assert len(pairs) >= 2
    for number, (snapshot, after) in enumerate(pairs):
        assert isinstance(snapshot, PlayerAdded)
        assert isinstance(after, PlayerReset)
        assert after.incarnation == number + 1
    assert began_again == [True] * len(pairs)
    assert games == [0.0] * len(pairs), "what the old weights won says nothing about the new ones"
    with closing(open_training(tmp_path, experiment)) as again:
        again.run()
    assert again.league.candidates.frozen() == training.league.candidates.frozen(), "nothing more to freeze"
    models = [event.model for event in story if isinstance(event, PlayerAdded)]
    assert len(models) == len(set(models))
    assert {model.split(":")[1] for model in models if model} >= {"0", "1"}


def test_a_reset_that_a_checkpoint_has_not_seen_is_done_again(tmp_path: Path) -> None:
    experiment = with_roles(
        tiny(ConnectFour(), budget=10_000, checkpoint_every=100),
        main=Role(reset_probability=1.0, promotion=BySteps(every=180)),
    )

    def failing(worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        if training.league.standings and training.league.standings["main"].incarnation:
            raise RuntimeError("the power failed")
        return progress

    with closing(open_training(tmp_path, replace(experiment, middleware=(failing,)))) as training:
        initial = training.learner.players["main"].weights()
        with pytest.raises(RuntimeError, match="the power failed"):
            training.run()
    with closing(open_training(tmp_path, experiment)) as again:
        main = again.learner.players["main"]
        assert main.decisions > 100
        assert main.incarnation == 2
        for name, array in main.weights().items():
            assert np.array_equal(array, initial[name])


def test_snapshots_can_be_of_the_averaged_weights(tmp_path: Path) -> None:
    experiment = with_roles(
        tiny(ConnectFour(), budget=300), main=Role(promotion=BySteps(every=100), snapshot_weights="average")
    )
    with closing(open_training(tmp_path, experiment)) as training:
        training.run()
    last = [event for event in events_of(tmp_path) if isinstance(event, PlayerAdded) and event.role == "frozen"][-1]
    assert last.weights == "average"
    model, weights = training.controller.fetch_frozen(last.player)
    assert str(model) == last.model
    live = training.folder.models.fetch(model, "live")
    average = training.folder.models.fetch(model, "average")
    assert all(np.array_equal(weights[name], average[name]) for name in weights)
    assert any(not np.array_equal(live[name], average[name]) for name in live)


# --- middleware ---


def test_middleware_sees_every_step_of_every_worker(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def look(worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        seen.append((worker.name, progress.count))
        return progress

    rounds: list[int] = []
    experiment = replace(EXPERIMENTS["connect_four"], middleware=(look,), budget=200)
    with closing(open_training(tmp_path, experiment)) as training:
        training.run(lambda _: rounds.append(len(seen)))
    names = [name for name, _ in seen]
    end = len(names) - names[::-1].index("learner")
    assert names[:end] == (["learner", "controller", "actor"] * len(rounds))[:end]
    assert end in rounds, "the round in which the budget is spent is watched, too"
    assert set(names[end:]) == {"actor"}, "what was learned is measured at the end"
    assert sum(count for name, count in seen if name == "learner") == training.learner.decisions


def test_middleware_can_change_the_progress_and_stop(tmp_path: Path) -> None:
    def noting(worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        return replace(progress, statistics={**progress.statistics, "seen_by_middleware": 1.0})

    def stop(worker: Worker, step: Callable[[], Progress]) -> Progress:
        if worker.name == "learner" and training.learner.decisions > 100:
            raise StopTraining("good enough")
        return step()

    experiment = EXPERIMENTS["connect_four"]
    with closing(open_training(tmp_path, replace(experiment, middleware=(noting, stop)))) as training:
        assert training.run() == "good enough"
    assert 100 < training.learner.decisions < 250
    records, _ = read_metrics(tmp_path / "metrics" / "train.jsonl")
    assert len(records) == training.learner.players["main"].step
    assert all(record["seen_by_middleware"] == 1.0 for record in records)
    with closing(open_training(tmp_path, experiment)) as again:
        assert again.learner.players["main"].incarnation == 0, "a stop that was asked for is a clean one"

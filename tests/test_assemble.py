"""Whole runs in one process: determinism, stopping and going on, crashes, settings, resets."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.algorithms.algorithm import Reference
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    MatchFinished,
    MatchIssued,
    MatchVoid,
    ModelId,
    PlayerAdded,
    PlayerReset,
    RunStarted,
)
from ludus.data.schedules import Linear
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Tree
from ludus.experiment import Experiment
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameSource, Turn
from ludus.games.isolation.source import Isolation
from ludus.games.lift import Lifted
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.payoff import PayoffRules
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.networks import ActorCritic
from ludus.runtime.program import IDLE, Progress, StopTraining, Worker
from ludus.runtime.serial import FINISHED, STOPPED
from ludus.serial_training import SerialTraining
from ludus.store.ledger import Ledger
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.evaluator import EvaluationConfig
from ludus.workers.trained_player import LearnerConfig

LEAGUE_PLAY = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))


def tiny(game: GameSource, **changes: Any) -> Experiment:
    """A run of a few updates, with snapshots, opponents from the past and evaluations in it."""
    teams = game.spec.num_teams
    settings: dict[str, Any] = {
        "name": "tiny",
        "game": game,
        "budget": 320,
        "model": ActorCritic(hidden=(8,), entity_size=4),
        "algorithm": PPO(),
        "actor": ActorConfig(num_tables=8, matches=2, episodes_per_table=teams, unroll_length=4),
        "learner": LearnerConfig(
            batch_size=64, minibatch_size=32, buffer_size=256, learning_rate=Linear(start=1e-2, end=1e-3)
        ),
        "league": LeagueRules(
            roles={"main": Role(matchmaking=LEAGUE_PLAY, promotion=BySteps(every=80))},
            bots=("random",),
            payoff=PayoffRules(min_games=2),
        ),
        "evaluation": EvaluationConfig(opponents=("random",), past=1, episodes=8),
        "seed": 3,
    }
    return Experiment(**{**settings, **changes})


MEMORY = ActorCritic(hidden=(8,), entity_size=4, memory=8)
EXPERIMENTS: dict[str, Experiment] = {
    "kuhn": tiny(Kuhn(), algorithm=MagnetPolicyGradient(magnet=Reference(copy_every=3))),
    "connect_four": tiny(ConnectFour()),
    "siege": tiny(Siege()),
    "memory": tiny(ConnectFour(), model=MEMORY),
    "siege with memory": tiny(Siege(), model=MEMORY),
    "goofspiel": tiny(Goofspiel(num_cards=3)),
    "cartpole": tiny(Gymnasium(env_id="CartPole-v1", max_length=20)),
}


def open_training(path: Path, experiment: Experiment) -> SerialTraining:
    """Begins a run in the folder, or goes on with the one that is there."""
    if not (path / "run.json").exists():
        RunFolder.create(path, encode(replace(experiment, middleware=())), seed=experiment.seed, command=())
    return SerialTraining(experiment, RunFolder.open(path))


def events_of(path: Path) -> list[AnyEvent]:
    with Ledger(path / "ledger.db", read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


@dataclass
class Outcome:
    """All of a run that must not depend on how it was cut into pieces."""

    arrays: Tree
    facts: dict[str, Any]
    events: list[AnyEvent]
    digest: str

    @classmethod
    def of(cls, training: SerialTraining) -> Outcome:
        arrays, facts = training.learner.save()
        return cls(arrays, facts, events_of(training.folder.path), training.league.state_digest())


def run_whole(path: Path, experiment: Experiment) -> Outcome:
    with closing(open_training(path, experiment)) as training:
        assert training.run() == FINISHED
    return Outcome.of(training)


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.events == other.events
    assert one.facts == other.facts
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name
    assert one.digest == other.digest


class StopAt:
    """Asks for an end at the given step of a worker, before or after it."""

    def __init__(self, step: int, *, after: bool) -> None:
        self._left = step
        self._after = after

    def __call__(self, worker: Worker, step: Callable[[], Progress]) -> Progress:
        self._left -= 1
        if self._left > 0:
            return step()
        if self._after:
            step()
        raise StopTraining("stopped for the test")


def run_until(path: Path, experiment: Experiment, stop: StopAt) -> SerialTraining:
    with closing(open_training(path, replace(experiment, middleware=(stop,)))) as training:
        training.run()
    return training


def crash(path: Path, experiment: Experiment, decisions: int) -> None:
    """The power fails in the middle of a round, once so many decisions were trained on."""

    def failing(worker: Worker, step: Callable[[], Progress]) -> Progress:
        progress = step()
        if worker.name == "actor" and training.learner.decisions >= decisions:
            raise RuntimeError("the power failed")
        return progress

    training = open_training(path, replace(experiment, middleware=(failing,)))
    with closing(training), pytest.raises(RuntimeError, match="the power failed"):
        training.run()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """The runs of `EXPERIMENTS` in one piece, each made once."""
    return cache(lambda name: run_whole(tmp_path_factory.mktemp("whole") / "run", EXPERIMENTS[name]))


# --- the same again ---


@pytest.mark.parametrize("name", ["kuhn", "connect_four", "memory", "siege", "goofspiel", "cartpole"])
def test_the_same_seed_gives_the_same_run(
    name: str, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    first = uninterrupted(name)
    assert_same(first, run_whole(tmp_path, EXPERIMENTS[name]))
    kinds = Counter(type(event).__name__ for event in first.events)
    assert kinds["PlayerAdded"] > 3
    assert kinds["MatchFinished"] > 3
    assert kinds["LearnerProgress"] > 5
    purposes = Counter(event.match.purpose for event in first.events if isinstance(event, MatchIssued))
    assert min(purposes["training"], purposes["evaluation"]) > 0


def test_another_seed_gives_another_run(uninterrupted: Callable[[str], Outcome], tmp_path: Path) -> None:
    one = uninterrupted("kuhn")
    other = run_whole(tmp_path, replace(EXPERIMENTS["kuhn"], seed=4))
    assert one.events != other.events
    assert one.digest != other.digest
    assert any(not np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stopping_and_going_on_changes_nothing(
    name: str, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    """Wherever in a round it stops, and however often."""
    experiment = EXPERIMENTS[name]
    for piece in itertools.count():
        training = run_until(tmp_path, experiment, StopAt(7 + 5 * piece, after=piece % 2 == 0))
        if training.learner.decisions > experiment.budget / 2:
            break
    assert piece > 1
    assert training.learner.decisions < experiment.budget
    assert_same(uninterrupted(name), run_whole(tmp_path, experiment))


BY_SEED = """
import json, sys
sys.stdin.readline()
print(json.dumps({"protocol": 1}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    legal = [row["legal"]["move"] for row in request["rows"]]
    chosen = [options[request["seed"] % len(options)] for options in legal]
    print(json.dumps({"id": request["id"], "actions": chosen}), flush=True)
"""


@pytest.mark.slow
def test_games_and_bots_in_other_processes_go_on_exactly_too(tmp_path: Path) -> None:
    program = tmp_path / "by_seed.py"
    program.write_text(BY_SEED)
    experiment = tiny(
        TicTacToe(),
        budget=240,
        isolation=Isolation(processes=2),
        bots={"by_seed": f"program:{program}"},
        league=LeagueRules(
            roles={"main": Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=80))},
            bots=("perfect", "by_seed"),
        ),
    )

    def stop_at_hand_over(worker: Worker, step: Callable[[], Progress]) -> Progress:
        """Between what bots have chosen and the step that plays it."""
        progress = step()
        if worker.name == "actor" and progress == IDLE:
            raise StopTraining
        return progress

    for _ in range(3):
        training = open_training(tmp_path / "cut", replace(experiment, middleware=(stop_at_hand_over,)))
        with closing(training):
            assert training.run() == STOPPED
    whole = run_whole(tmp_path / "whole", experiment)
    assert_same(whole, run_whole(tmp_path / "cut", experiment))
    issued = [event.match for event in whole.events if isinstance(event, MatchIssued)]
    met = {player for match in issued for side in match.sides for player in side.players}
    assert {"perfect", "by_seed"} <= met


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stopped_at", ["learner", "controller", "actor"])
def test_stopping_around_an_update_changes_nothing(
    stopped_at: str, after: bool, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    updating = False

    def stop(worker: Worker, step: Callable[[], Progress]) -> Progress:
        nonlocal updating
        updating = updating or training.learner.buffers["main"].held_up().any()
        if updating and worker.name == stopped_at:
            if after:
                step()
            raise StopTraining
        return step()

    experiment = EXPERIMENTS["connect_four"]
    for _ in range(2):
        updating = False
        with closing(open_training(tmp_path, replace(experiment, middleware=(stop,)))) as training:
            training.run()
    assert_same(uninterrupted("connect_four"), run_whole(tmp_path, experiment))


def test_a_longer_budget_goes_on_with_the_same_matches(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    before = run_whole(tmp_path, replace(experiment, budget=120))
    after = run_whole(tmp_path, experiment)
    assert after.events[: len(before.events)] == before.events
    assert after.facts["main"]["incarnation"] == 0
    assert after.facts["main"]["decisions"] >= experiment.budget
    assert not any(isinstance(event, MatchVoid) for event in check_ledger(tmp_path))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stopped_at", ["learner", "actor"])
def test_stopping_at_the_end_changes_nothing(
    stopped_at: str, after: bool, uninterrupted: Callable[[str], Outcome], tmp_path: Path
) -> None:
    """Around the last update, and while what was learned is measured."""
    experiment = EXPERIMENTS["connect_four"]

    def stop(worker: Worker, step: Callable[[], Progress]) -> Progress:
        if stopped_at == "learner":
            buffer = training.learner.buffers["main"]
            now = (
                buffer.held_up().any() and training.learner.decisions + buffer.decisions >= experiment.budget
            )
        else:
            now = training.learner.decisions >= experiment.budget
        if now and worker.name == stopped_at:
            if after:
                step()
            raise StopTraining
        return step()

    with closing(open_training(tmp_path, replace(experiment, middleware=(stop,)))) as training:
        assert training.run() == STOPPED
    assert_same(uninterrupted("connect_four"), run_whole(tmp_path, experiment))


def test_other_settings_start_new_matches(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    run_whole(tmp_path, replace(experiment, budget=120))
    changed = replace(experiment, actor=replace(experiment.actor, num_tables=4))
    with closing(open_training(tmp_path, changed)) as training:
        assert training.learner.players["main"].incarnation == 1
        assert training.run() == FINISHED
    check_ledger(tmp_path)


# --- crashes ---


def check_ledger(path: Path) -> list[AnyEvent]:
    """Every issued match has one end or is open; nothing ends that was not issued."""
    events = events_of(path)
    issued = [event.match.id for event in events if isinstance(event, MatchIssued)]
    ended = [event.result.match_id for event in events if isinstance(event, MatchFinished)]
    ended += [event.match_id for event in events if isinstance(event, MatchVoid)]
    assert len(issued) == len(set(issued))
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(issued)
    with Ledger(path / "ledger.db", read_only=True) as ledger:
        assert {match.id for match in ledger.open_matches()} == set(issued) - set(ended)
    return events


@pytest.mark.parametrize("name", ["kuhn", "siege", "memory"])
def test_a_crash_loses_no_result_and_counts_none_twice(name: str, tmp_path: Path) -> None:
    experiment = replace(EXPERIMENTS[name], checkpoint_every=100)
    crash(tmp_path, experiment, decisions=230)
    before = check_ledger(tmp_path)
    finished = [event for event in before if isinstance(event, MatchFinished)]
    assert finished
    with closing(open_training(tmp_path, experiment)) as training:
        assert 100 <= training.learner.decisions < experiment.budget, "it goes on from the checkpoint"
        assert training.learner.players["main"].incarnation == 1
        assert training.league.matches.finished == len(finished)
        assert not training.league.matches.open_matches
        assert training.run() == FINISHED
    events = check_ledger(tmp_path)
    assert events[: len(before)] == before
    void = [event for event in events if isinstance(event, MatchVoid)]
    assert {event.reason for event in void} == {"restart"}
    assert len(void) == sum(isinstance(event, MatchIssued) for event in before) - len(finished)
    assert [event.start for event in events if isinstance(event, RunStarted)] == [0, 1]
    played = {
        name
        for event in events[len(before) :]
        if isinstance(event, MatchFinished)
        for name in (*event.result.first_models, *event.result.last_models)
    }
    frozen = {event.model for event in events if isinstance(event, PlayerAdded)}
    old = {str(ModelId("main", 0, event.step)) for event in before if isinstance(event, LearnerProgress)}
    assert not (played - frozen) & old, "an id never means two contents"


def test_a_crash_before_the_first_checkpoint_starts_afresh(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["connect_four"]
    for start in range(3):
        crash(tmp_path, experiment, decisions=60)
        with closing(open_training(tmp_path, experiment)) as training:
            assert training.learner.decisions == 0
            assert training.learner.players["main"].incarnation == start + 1
    events = check_ledger(tmp_path)
    assert [event.start for event in events if isinstance(event, RunStarted)] == list(range(6))


def test_a_clean_stop_is_not_used_twice_after_a_crash(tmp_path: Path) -> None:
    """The tables of a clean checkpoint are of no use once the ledger has gone on."""
    experiment = EXPERIMENTS["connect_four"]
    run_until(tmp_path, experiment, StopAt(80, after=True))
    crash(tmp_path, experiment, decisions=200)
    with closing(open_training(tmp_path, experiment)) as training:
        assert training.learner.players["main"].incarnation == 1
        assert training.run() == FINISHED
    check_ledger(tmp_path)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENTS["kuhn"], checkpoint_every=60)
    training = run_until(tmp_path, experiment, StopAt(260, after=True))
    older, newest = sorted((tmp_path / "checkpoints").rglob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    with closing(open_training(tmp_path, experiment)) as again:
        assert again.learner.decisions == int(older.stem.split("-")[1]) > 0
        assert again.learner.decisions <= training.learner.decisions
        assert again.learner.players["main"].incarnation == 1
        assert again.run() == FINISHED
    check_ledger(tmp_path)


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    whole = run_whole(tmp_path, EXPERIMENTS["kuhn"])
    assert_same(whole, run_whole(tmp_path, EXPERIMENTS["kuhn"]))


# --- settings have an effect ---


def with_roles(experiment: Experiment, **roles: Role) -> Experiment:
    return replace(experiment, league=replace(experiment.league, roles=roles))


def test_several_learning_players(tmp_path: Path) -> None:
    experiment = with_roles(
        tiny(ConnectFour(), budget=800), main=Role(count=2, matchmaking=LEAGUE_PLAY), other=Role()
    )
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
    with closing(SerialTraining(started, folder)) as training:
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
        tiny(ConnectFour(), budget=300),
        main=Role(promotion=BySteps(every=100), snapshot_weights="average"),
    )
    with closing(open_training(tmp_path, experiment)) as training:
        training.run()
    last = [
        event for event in events_of(tmp_path) if isinstance(event, PlayerAdded) and event.role == "frozen"
    ][-1]
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

    ends: list[int] = []
    experiment = replace(EXPERIMENTS["connect_four"], middleware=(look,), budget=200)
    with closing(open_training(tmp_path, experiment)) as training:
        training.run(lambda _: ends.append(len(seen)))
    in_turn = [name for name, _ in seen[: ends[-1]]]
    assert in_turn == (["learner", "controller", "actor"] * len(ends))[: len(in_turn)]
    assert {name for name, _ in seen[ends[-1] :]} == {"actor"}, "what was learned is measured at the end"
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

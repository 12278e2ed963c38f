"""The device runtime on the CPU: whole leagues, kills and resumes, edits, what it refuses, and that it learns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from command_line import Ludus
from edited_runs import Asker, folder_of, tiny
from whole_runs import check_ledger

from ludus import PPO, EvaluationConfig, Experiment
from ludus.algorithms import Impala
from ludus.config import ConfigError, apply_overrides
from ludus.data.records import (
    AddPlayer,
    ChangeSettings,
    Continue,
    LearnerProgress,
    MatchFinished,
    MatchIssued,
    MatchVoid,
    ModelId,
    Pause,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    RemovePlayer,
    ResetPlayer,
)
from ludus.games import ConnectFour, Goofspiel, Siege, Skirmish
from ludus.league import PFSP, BoundedHistory, BySteps, ByTime, FixedLaw, LeagueRules, Live, Mixture, Role, SelfPlay
from ludus.models.network_policy import ActorCritic
from ludus.recipes import skirmish_alphastar
from ludus.runtime.assemble import CHECKPOINT, exact_report, load_experiment, load_league
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.device import DeviceWorkers, device_training, require_on_device, tensor_game
from ludus.runtime.rounds import FINISHED
from ludus.store.run_folder import read_metrics
from ludus.workers.actor import ActorConfig
from ludus.workers.config import DeviceConfig, Openings
from ludus.workers.device.matches import plays_uniformly
from ludus.workers.worker import Diverged, Progress, StopTraining, TrainingFailed, Worker

MIXED = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
ROLES = {
    "main": Role(matchmaking=MIXED, promotion=BySteps(every=1_000)),
    "exploiter": Role(matchmaking=Live(role="main"), promotion=BySteps(every=700), reset_probability=1.0),
}


def league(**changes: Any) -> Experiment:
    rules = LeagueRules(roles=ROLES, bots=("random",))
    return tiny(runtime="device", league=rules, **changes)


def on_device(path: Path, experiment: Experiment) -> Coordinator[DeviceWorkers]:
    return device_training(experiment, folder_of(path, replace(experiment, middleware=())))


def test_a_league_plays_its_quotas_and_every_result_adds_up(tmp_path: Path) -> None:
    with closing(on_device(tmp_path / "run", league())) as training:
        assert training.run() == FINISHED
        reset = [event for event in check_ledger(tmp_path / "run") if isinstance(event, PlayerReset)]
    events = check_ledger(tmp_path / "run")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    results = [event.result for event in events if isinstance(event, MatchFinished)]
    trained = [one for one in results if issued[one.match_id].purpose == "training"]
    measured = [one for one in results if issued[one.match_id].purpose == "evaluation"]
    assert len(trained) > 10
    assert len(measured) > 3
    assert len(reset) >= 1
    for result in trained:
        match, [pair] = issued[result.match_id], result.pairs
        assert result.episodes == match.episodes == 64
        assert pair.wins + pair.draws + pair.losses == 64
        assert sum(result.score_sum) == pytest.approx(0.0)
        assert 2 * 64 <= result.steps == sum(result.decisions) <= 3 * 64
        assert match.sides[0].players[0] in ROLES
        assert match.sides[0].trains
    players = {side.players[0] for match in issued.values() for side in match.sides}
    assert {"main", "exploiter", "main.1", "exploiter.1"} <= players
    frozen = [event.player for event in events if isinstance(event, PlayerAdded) and event.role == "frozen"]
    assert {"main.1", "main.2", "exploiter.1", "exploiter.2"} <= set(frozen)
    rows, _ = read_metrics(folder_of(tmp_path / "run").metrics / "train.jsonl")
    assert rows[-1]["decisions"] >= 3_000
    assert rows[-1]["main/learning_rate"] == 3e-4
    assert {"main/entropy", "exploiter/kl", "main/episode_length", "updates"} <= rows[-1].keys() | rows[-2].keys()


def test_snapshots_and_results_name_the_weights_that_the_counted_updates_made(tmp_path: Path) -> None:
    """Although matches turn over while the next round computes."""
    known: dict[str, tuple[int, Mapping[str, Any]]] = {}

    def note(training: Any) -> None:
        for one in training.learner.players.values():
            weights = {name: array.copy() for name, array in one.weights().items()}
            known[str(one.model)] = one.decisions, weights

    path, more = tmp_path / "run", DeviceConfig(updates_per_round=3)
    with closing(on_device(path, league(budget=12_000, device=more))) as training:
        note(training)
        assert training.run(note) == FINISHED
        models = training.folder.models
    snapshots = 0
    for event in check_ledger(path):
        if isinstance(event, PlayerAdded) and event.role == "frozen" and event.model in known:
            decisions, weights = known[event.model]
            model = ModelId.parse(event.model)
            assert models.entry(model).facts["decisions"] == decisions
            for name, array in models.fetch(model).items():
                assert (array == weights[name]).all()
            snapshots += 1
        if isinstance(event, MatchFinished) and event.result.last_models[0].startswith("main:0"):
            assert event.result.last_models[0] in known  # not those of an update in the middle of a round
    assert snapshots > 4


def test_a_match_that_begins_while_a_round_computes_counts_nothing_of_it(tmp_path: Path) -> None:
    """Every match has each episode of its quota once, whoever sat at its tables before."""
    given = league(budget=30_000, device=DeviceConfig(updates_per_round=2))
    actor = replace(given.actor, num_tables=64, matches=8, episodes_per_table=2)
    complete = 0
    with closing(on_device(tmp_path / "run", replace(given, actor=actor))) as training:
        seen = 0

        def watch(training: Any) -> None:
            nonlocal complete, seen
            if training.learner.decisions > seen:  # a round of training
                seen = training.learner.decisions
                complete += int((training.workers._matches._tally[:, 0] == 2 * 8).sum())

        assert training.run(watch) == FINISHED
    events = check_ledger(tmp_path / "run")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    results = [event.result for event in events if isinstance(event, MatchFinished)]
    trained = [one for one in results if issued[one.match_id].purpose == "training"]
    void = [event for event in events if isinstance(event, MatchVoid) and event.reason == "a player was reset"]
    assert len(trained) + len(void) == complete
    assert len(trained) > 50
    for result in trained:
        [pair] = result.pairs
        assert result.episodes == pair.wins + pair.draws + pair.losses == 2 * 8
        assert 2 * 2 * 8 <= result.steps == sum(result.decisions) <= 3 * 2 * 8


def test_a_failure_while_a_round_computes_leaves_weights_and_counts_that_belong_together(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with closing(on_device(path, league(budget=10**9))) as training:

        def watch(training: Any) -> None:
            if training.learner.decisions > 1_000:
                training.learner.turn_over = fail

        def fail() -> None:
            raise TrainingFailed("nobody can play that")

        with pytest.raises(TrainingFailed, match="nobody can play that"):
            training.run(watch)
        engine, players = training.learner.engine, training.learner.players.values()
        assert not engine.learning.decisions.any()
        saved = training.folder.checkpoints(CHECKPOINT).load_latest()
        assert saved is not None
        assert saved.step == sum(one.decisions for one in players)
        steps = {name: facts["step"] for name, facts in saved.facts["learner"].items()}
        assert steps == {one.player: one.step for one in players}


def crash(path: Path, experiment: Experiment, steps: int) -> None:
    """The power fails after so many steps of workers."""
    left = steps

    def failing(worker: Worker, step: Callable[[], Progress]) -> Progress:
        nonlocal left
        progress = step()
        left -= 1
        if not left:
            raise RuntimeError("the power failed")
        return progress

    with (
        closing(on_device(path, replace(experiment, middleware=(failing,)))) as training,
        pytest.raises(RuntimeError, match="the power failed"),
    ):
        training.run()


def test_a_stop_in_good_order_leaves_the_decisions_of_the_checkpoint_in_the_ledger(tmp_path: Path) -> None:
    """The learner steps last: the controller would hear of its latest update in the next round."""
    path, updates = tmp_path / "run", 0

    def stopping(worker: Worker, step: Callable[[], Progress]) -> Progress:
        nonlocal updates
        progress = step()
        updates += bool(progress.count) and worker.name == "learner"
        if updates == 3:
            raise StopTraining("enough")
        return progress

    with closing(on_device(path, replace(league(), middleware=(stopping,)))) as training:
        assert training.run() == "enough"
        learned = training.learner.decisions
    told = {event.player: event.decisions for event in check_ledger(path) if isinstance(event, LearnerProgress)}
    assert sum(told.values()) == learned > 0


def test_kills_leave_the_ledger_in_order_and_lose_nothing_that_it_holds(tmp_path: Path) -> None:
    experiment, path = league(), tmp_path / "run"
    before: list[Any] = []
    for number, steps in enumerate((1, 2, 3, 7, 11, 19, 8, 14)):
        crash(path, experiment, steps)
        events = check_ledger(path)
        assert events[: len(before)] == before
        before = events
        assert sum(type(event).__name__ == "RunStarted" for event in events) == number + 1
    with closing(on_device(path, experiment)) as training:
        assert training.run() == FINISHED
        digest = training.league.state_digest()
        assert not training.league.matches.open_matches
    events = check_ledger(path)
    ids = [(one.player, one.incarnation, one.step) for one in events if isinstance(one, LearnerProgress)]
    assert len(ids) == len(set(ids))  # no model id means two contents
    assert max(incarnation for _, incarnation, _ in ids) >= 8
    with closing(on_device(path, experiment)) as again:  # a fold of the ledger
        assert again.league.players.keys() == training.league.players.keys()
    assert digest


def test_snapshots_by_time_and_a_bounded_history_are_a_fold_of_the_ledger(tmp_path: Path) -> None:
    """The time is in the rows, so that a replay, which takes none, comes to the same league."""
    path = tmp_path / "run"
    roles = {
        "main": Role(matchmaking=MIXED, promotion=ByTime(seconds=0.05), history=BoundedHistory(size=4, strongest=1)),
        "foe": Role(matchmaking=Live(role="main"), promotion=BySteps(every=400)),
    }
    experiment = tiny(runtime="device", league=LeagueRules(roles=roles), budget=10**9)
    starts = []
    for _ in range(2):

        def watch(training: Any) -> None:
            if sum(one.startswith("main.") for one in training.league.players) >= 9 * (len(starts) + 1):
                raise StopTraining("enough")

        with closing(on_device(path, experiment)) as training:
            starts.append(training.controller.clock.seconds)
            assert training.run(watch) == "enough"
            live = training.league
        replayed = load_league(folder_of(path), experiment)
        assert replayed.state_digest() == live.state_digest()
        assert len(live.candidates.history_of("main")) == 4
    events = check_ledger(path)
    seconds = [event.seconds for event in events if isinstance(event, LearnerProgress)]
    assert seconds == sorted(seconds)
    assert 0.0 < starts[1] <= seconds[-1]  # the second start goes on counting
    added = [event for event in events if isinstance(event, PlayerAdded) and event.parent == "main"]
    assert {event.reason.split()[-1] for event in added} == {"initial", "seconds"}
    gone = [event.player for event in events if isinstance(event, PlayerRemoved)]
    assert len(gone) == len(added) - 4
    assert "main.1" not in gone
    assert live.candidates.history_of("main")[-1] == added[-1].player


def test_without_a_rule_that_reads_the_time_no_row_holds_it(tmp_path: Path) -> None:
    with closing(on_device(tmp_path / "run", league(budget=400))) as training:
        training.run()
    progress = [one for one in check_ledger(tmp_path / "run") if isinstance(one, LearnerProgress)]
    assert progress
    assert {one.seconds for one in progress} == {0.0}
    assert b"seconds" not in (tmp_path / "run" / "ledger.db").read_bytes()


def test_edits_reach_a_run_and_a_player_that_joins_is_trained(tmp_path: Path) -> None:
    asker = Asker(
        edits=(
            (200, ChangeSettings(settings={"learner.epochs": "2", "learner.learning_rate": "1e-3"})),
            (400, ChangeSettings(settings={"algorithm.entropy": "{type: Linear, start: 0.1, end: 0.0}"})),
            (600, AddPlayer(player="second", role="main")),
            (900, ChangeSettings(settings={"learner.epochs": "3"}, player="main")),
            (1_000, ChangeSettings(settings={"learner.learning_rate": "1e-4"}, player="main")),
            (1_100, ResetPlayer(player="second")),
            (1_300, RemovePlayer(player="second")),
        )
    )

    def watch(training: Any) -> None:
        asker(training)
        if len(asker.answers) == len(asker.edits):
            raise StopTraining("all answered")

    with closing(on_device(tmp_path / "run", tiny(runtime="device", budget=10**9))) as training:
        assert training.run(watch) == "all answered"
        players = training.workers.learner.players
        assert list(players) == ["main"]
        assert players["main"].config.learning_rate == 1e-4
        assert players["main"].config.epochs == 2
    [refused] = asker.refusals
    assert "learner.epochs is" in refused
    assert "in one stack" in refused
    events = check_ledger(tmp_path / "run")
    progress = [event for event in events if isinstance(event, LearnerProgress) and event.player == "second"]
    assert progress[-1].decisions > 100
    assert progress[-1].incarnation > 0


def test_a_paused_run_waits_and_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []

    def watch(training: Any) -> None:
        if not seen:
            training._orders.obey(Pause())
        if len(seen) == 5:
            training._orders.obey(Continue())
        seen.append((training.workers.paused, training.learner.decisions))
        training._orders.stop = len(seen) > 5 and seen[-1][1] > seen[4][1]

    with closing(on_device(tmp_path / "run", tiny(runtime="device"))) as training:
        training.run(watch)
        training.controller.clock.hold(True)
        held = training.controller.clock.seconds
        assert training.controller.clock.seconds == held
        training.controller.clock.hold(False)
        time.sleep(0.01)
        assert training.controller.clock.seconds > held
    _, (_, last), *rest = seen  # it is told at the end of a round
    assert rest[:3] == [(True, last)] * 3
    assert rest[-1][0] is False
    assert rest[-1][1] > last


def test_the_same_seed_trains_the_same_league(tmp_path: Path) -> None:
    weights = []
    for name in ("one", "two"):
        with closing(on_device(tmp_path / name, league(budget=1_000))) as training:
            training.run()
            weights.append({player: one.weights() for player, one in training.workers.learner.players.items()})
    assert check_ledger(tmp_path / "one") == check_ledger(tmp_path / "two")
    for player, arrays in weights[0].items():
        for name, array in arrays.items():
            assert (array == weights[1][player][name]).all()


def test_the_random_bot_is_an_opponent_in_training_and_plays_uniformly(tmp_path: Path) -> None:
    """It takes every legal option with the same probability, as a network of zeros does."""
    roles = {"main": Role(matchmaking=FixedLaw(shares={"random": 1.0}), promotion=BySteps(every=10**6))}
    learner = replace(tiny().learner, learning_rate=0.0)
    rules = LeagueRules(roles=roles, bots=("random",))
    experiment = tiny(runtime="device", league=rules, game=ConnectFour(threats=False), learner=learner)
    with closing(on_device(tmp_path / "run", experiment)) as training:
        assert training.run() == FINISHED
        engine = training.workers.learner.engine
        played = engine.rollout.play(engine.weights, engine.learning.views, None)
        sides = engine.layout.side_of_group.repeat_interleave(engine.layout.rows, 1)
        steps = engine.layout.steps
        for step in range(steps):
            theirs = (sides[step % 2] == 1) & played.acted[step]
            seats = played.seat[step]
            state = {name: tensor[step] for name, tensor in played.state.items()}
            legal = tensor_game(experiment).legal(state, seats).sum(-1)
            expected = -legal.float().log()[theirs]
            torch.testing.assert_close(played.log_prob[step, :, 0][theirs], expected)
    events = check_ledger(tmp_path / "run")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    results = [event.result for event in events if isinstance(event, MatchFinished)]
    trained = [one for one in results if issued[one.match_id].purpose == "training"]
    assert trained
    assert {one.first_models[1] for one in trained} == {""}
    assert {issued[one.match_id].sides[1].players for one in trained} == {("random",)}
    assert not any(issued[one.match_id].sides[1].trains for one in trained)


def test_scripted_players_of_the_tensor_game_are_opponents_in_training(tmp_path: Path) -> None:
    """They beat a network that learns nothing, which `random` does not. Only the learning player trains."""
    law = FixedLaw(shares={"rush": 0.3, "boom": 0.3, "random": 0.4})
    roles = {"main": Role(matchmaking=law, promotion=BySteps(every=10**6))}
    experiment = tiny(
        runtime="device",
        game=Skirmish(),
        model=ActorCritic(hidden=(8,), channels=(2,), entity_size=4),
        budget=3_000,
        actor=ActorConfig(num_tables=12, matches=6, episodes_per_table=2),
        learner=replace(tiny().learner, batch_size=512, minibatch_size=256, learning_rate=0.0),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        league=LeagueRules(roles=roles, bots=("rush", "boom", "spears", "random")),
    )
    with closing(on_device(tmp_path / "run", experiment)) as training:
        assert training.run() == FINISHED
        engine = training.workers.learner.engine
        learned = engine.players[0].decisions
    events = check_ledger(tmp_path / "run")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    won: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, MatchFinished) and issued[event.result.match_id].purpose == "training":
            match, result = issued[event.result.match_id], event.result
            assert result.first_models[1] == ""
            assert not match.sides[1].trains
            assert result.decisions[0] <= learned
            won.setdefault(match.sides[1].players[0], []).append(result.pairs[0].losses / result.episodes)
    assert won.keys() == {"rush", "boom", "random"}
    assert min(map(min, (won["rush"], won["boom"]))) > 0.8, won  # a network without training
    assert max(won["random"]) < 0.8, won


def test_a_dead_network_ends_the_run_by_name_and_is_not_saved(tmp_path: Path) -> None:
    """Weights of the trunk that are 0 give every position the same value."""
    saved: list[int] = []

    def watch(training: Any) -> None:
        checkpoint = training.folder.checkpoints(CHECKPOINT).load_latest()
        saved.append(0 if checkpoint is None else checkpoint.step)
        if training.learner.decisions > 1_000:
            for parameter in training.learner.players["main"].policies[0].parameters():
                if parameter.dim() > 1:
                    parameter.data.zero_()

    experiment = tiny(runtime="device", budget=10**9, learner=replace(tiny().learner, learning_rate=1e-9))
    with closing(on_device(tmp_path / "run", experiment)) as training:
        with pytest.raises(Diverged, match=r"spoilt the network of main: it gives every position the value .*--resume"):
            training.run(watch)
        latest = training.folder.checkpoints(CHECKPOINT).load_latest()
    assert latest is not None
    assert latest.step == saved[-1]
    assert latest.step <= 1_000 + 500
    check_ledger(tmp_path / "run")


def test_weights_that_explode_end_the_run_by_name(tmp_path: Path) -> None:
    experiment = tiny(runtime="device", budget=10**9, learner=replace(tiny().learner, learning_rate=1e3))
    with (
        closing(on_device(tmp_path / "run", experiment)) as training,
        pytest.raises(Diverged, match="the weights of main grew in one update with learning rate 1000"),
    ):
        training.run()


@dataclass(frozen=True, kw_only=True)
class OnlyAlone(PPO):
    stackable: ClassVar[bool] = False


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"game": Siege()}, r"game: siege has no tensor game \(.*docs/gpu\.md\); use --runtime local"),
    ({"actors": 2}, "actors is not for the device runtime; use --runtime local"),
    ({"policies": "per_seat"}, "policies is not for the device runtime"),
    ({"model": ActorCritic(value_normalisation=True)}, "model.value_normalisation is not for the device"),
    ({"learner.ranks": "2", "actors": None}, "learner.ranks=2 is not for the device runtime"),
    ({"algorithm": OnlyAlone()}, "algorithm=OnlyAlone is not for the device runtime"),
    (
        {
            "league": LeagueRules(
                roles={
                    "main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000), algorithm=Impala()),
                    "rival": Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000)),
                }
            )
        },
        "league.roles.main.algorithm needs sequences and league.roles.rival.algorithm does not",
    ),
    ({"actor.num_tables": "1", "actor.matches": "1"}, r"actor\.num_tables=1 is too few for 1 blocks"),
    ({"league.capacity": "1"}, "league.capacity is not for the device runtime"),
    ({"league.roles.main.trains": "everyone"}, "league.roles.main.trains=everyone is not for the device runtime"),
    (
        {
            "league.roles.main.matchmaking": "{type: UniformPast, over: scripted}",
            "league.bots": "[random, equilibrium]",
        },
        "matchmaking may choose the bot 'equilibrium', which plays on the CPU",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_it_cannot_do_is_refused_by_name(changes: Mapping[str, Any], message: str) -> None:
    whole = {name: value for name, value in changes.items() if not isinstance(value, str) or name == "policies"}
    texts = {name: value for name, value in changes.items() if name not in whole}
    experiment = apply_overrides(tiny(runtime="device", **{n: v for n, v in whole.items() if "." not in n}), texts)
    with pytest.raises(ConfigError, match=message):
        require_on_device(experiment)


def test_the_random_bot_is_an_opponent_in_training_where_strategies_are_shown() -> None:
    described = skirmish_alphastar.experiment()
    able = replace(described, runtime="device", league=replace(described.league, bots=("random",)))
    require_on_device(able)
    assert plays_uniformly(able.grouped_game.bots()["random"])
    assert not plays_uniformly(described.grouped_game.bots()["rush"])


def test_models_to_start_from_may_be_addresses_when_a_run_is_checked() -> None:
    roles = {name: replace(role, start="runs/clone#main@best") for name, role in ROLES.items()}
    rules = LeagueRules(roles=roles, bots=("random",), external={"rival": "runs/other#main"})
    require_on_device(tiny(runtime="device", league=rules))


def test_a_recipe_is_refused_before_a_folder_is_made(ludus: Ludus, tmp_path: Path) -> None:
    shown = ludus("train", "skirmish_3v3", "--runtime", "device", "--run", "runs/never")
    assert shown.code == 2
    assert "game: skirmish 3v3 has no tensor game" in shown.err
    assert not (tmp_path / "runs" / "never").exists()


SMALL = ("model.hidden=32", "actor.num_tables=256", "evaluation.episodes=64", "learner.device=cpu")
"""Settings that let a recipe train in seconds."""


def settings(*given: str) -> list[str]:
    return [part for one in (*SMALL, *given) for part in ("--set", one)]


def test_kuhn_comes_closer_to_an_equilibrium(ludus: Ludus) -> None:
    """Random play has a NashConv of 0.92."""
    more = settings("budget=40_000", "learner.batch_size=1200", "learner.minibatch_size=600")
    shown = ludus("train", "kuhn", "--runtime", "device", "--run", "kuhn", "--json", *more)
    assert shown.code == 0, shown.err
    end = json.loads(shown.out.splitlines()[-1])
    assert end["nash_conv"]["averaged weights of main"] < 0.5


@pytest.mark.slow
def test_tic_tac_toe_beats_random_play(ludus: Ludus, tmp_path: Path) -> None:
    more = settings("budget=24_000", "learner.batch_size=1024", "learner.minibatch_size=512", "openings.moves=2")
    more += settings(
        "learner.learning_rate=5e-3", "league.roles.main.snapshot_weights=live", "evaluation.opponents=random"
    )
    shown = ludus("train", "tic_tac_toe", "--runtime", "device", "--run", "xo", "--quiet", *more)
    assert shown.code == 0, shown.err
    events = check_ledger(tmp_path / "xo")
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    shares = {}
    for event in events:
        if isinstance(event, MatchFinished):
            match, [pair] = issued[event.result.match_id], event.result.pairs
            if match.purpose == "evaluation" and match.sides[1].players == ("random",):
                shares[match.sides[0].players[0]] = (pair.wins + pair.draws / 2) / event.result.episodes
    assert [*shares.values()][-1] > 0.7, shares
    assert shares["main.1"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["skirmish", "skirmish_alphastar"])
def test_recipes_of_skirmish_train_on_the_device(ludus: Ludus, tmp_path: Path, recipe: str) -> None:
    """With teacher, central critic, delays and scripted opponents; the second also with memory, strategies and three
    roles."""
    given = {
        "learner.device": "cpu",
        "actor.num_tables": "12",
        "actor.matches": "3",
        "actor.episodes_per_table": "2",
        "actor.unroll_length": "8",
        "learner.batch_size": "128",
        "learner.minibatch_size": "64",
        "evaluation.episodes": "2",
        "evaluation.opponents": "rush",
        "budget": "400",
    }
    options = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    shown = ludus("train", recipe, "--runtime", "device", "--run", "run", "--quiet", *options)
    assert shown.code == 0, shown.err
    rows, _ = read_metrics(folder_of(tmp_path / "run").metrics / "train.jsonl")
    assert rows[-1]["decisions"] >= 400
    measured = {name for row in rows for name in row}
    assert {"main/teacher_loss", "main/entropy.delay", "main/entropy.units", "main/explained_variance"} <= measured
    assert ("main/value_loss.build_order" in measured) == (recipe == "skirmish_alphastar")


def test_an_exploiter_trains_on_the_device_with_the_tables_of_one_player(ludus: Ludus, tmp_path: Path) -> None:
    """So its iterations are as long as those of the run, whose two players share the tables."""
    with closing(on_device(tmp_path / "run", league(budget=600))) as training:
        training.run()
    given = settings("learner.device=cpu")[-2:]
    shown = ludus("exploit", "run", "main", "--train", "--budget", "500", "-n", "16", "--json", *given)
    assert shown.code == 0, shown.err
    trained = json.loads(shown.out)["trained"]
    assert trained["curve_episodes"] == 16
    assert trained["curve"][-1]["decisions"] > 0
    [folder] = (tmp_path / "run" / "exploits").iterdir()
    experiment = load_experiment(folder_of(folder))
    assert experiment.runtime == "device"
    assert (experiment.actor.num_tables, experiment.actor.matches) == (8, 1)


def test_games_with_masks_and_all_settings_of_the_engine_run(tmp_path: Path) -> None:
    settings = DeviceConfig(precision="bfloat16", updates_per_round=3)
    more = {"openings": Openings(moves=2, share=0.5)}
    for game in (Goofspiel(num_cards=3), ConnectFour(threats=False)):
        actor = ActorConfig(num_tables=16, matches=2, episodes_per_table=6)
        rules = PPO(value_clip=0.2)
        experiment = tiny(
            runtime="device", game=game, budget=800, device=settings, algorithm=rules, actor=actor, **more
        )
        with closing(on_device(tmp_path / game.spec.name, experiment)) as training:
            assert training.run() == FINISHED
            assert training.numbers()["updates"] >= 3
        assert exact_report(experiment, training.folder, training.league) is None or game.spec.num_seats == 3

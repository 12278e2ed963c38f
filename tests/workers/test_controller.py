"""The controller: ledger first, league after; snapshots, scores, and results that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ludus.config import ConfigError, encode
from ludus.data.records import (
    AnyEvent,
    LearnerProgress,
    Match,
    MatchFinished,
    MatchIssued,
    MatchLeased,
    MatchVoid,
    ModelId,
    Pair,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    Result,
    ScoreMeasured,
)
from ludus.experiment import Experiment
from ludus.games.adapters.gymnasium import Gymnasium
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.game import GameSource
from ludus.league.matches import UnknownMatchError
from ludus.league.players import RETIRED, Player
from ludus.league.promotion import BoundedHistory, BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.league.summary import best_snapshot, named_models
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_players
from ludus.runtime.coordinator import Training
from ludus.runtime.serial import serial_training
from ludus.store.inspection import inspect_run, read_ledger
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.system.text import LONGEST_REASON
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.controller import Controller
from ludus.workers.worker import IDLE


def experiment(game: GameSource, **changes: object) -> Experiment:
    base = Experiment(
        name="tiny",
        game=game,
        budget=100,
        model=ActorCritic(hidden=(4,)),
        actor=ActorConfig(num_tables=4, matches=1, episodes_per_table=2, unroll_length=4),
        learner=LearnerConfig(batch_size=32, minibatch_size=32, buffer_size=128),
        league=LeagueRules(roles={"main": Role(promotion=BySteps(every=30))}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=("random",), past=0, episodes=4),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def new_training(path: Path, described: Experiment) -> Training:
    return serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    with closing(new_training(tmp_path / "run", experiment(ConnectFour()))) as made:
        yield made


@pytest.fixture
def controller(training: Training) -> Controller:
    return training.controller


def on_disk(training: Training) -> list[AnyEvent]:
    """What another process reads now."""
    with Ledger(training.folder.ledger_path, read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


def result_of(match: Match, score: float = 0.0) -> Result:
    sides = len(match.sides)
    pairs = tuple(Pair(a, b, match.episodes, 0, 0) for a in range(sides) for b in range(a + 1, sides))
    return Result(
        match_id=match.id,
        episodes=match.episodes,
        steps=9,
        decisions=(1,) * sides,
        pairs=pairs,
        score_sum=(score,) * sides,
        score_square_sum=(score**2,) * sides,
        first_models=("",) * sides,
        last_models=("main:0:0",) * sides,
    )


def test_a_match_is_on_disk_before_anybody_plays_it(training: Training, controller: Controller) -> None:
    first, second = controller.next_match(4), controller.next_match(3)
    assert on_disk(training)[-4:] == [
        MatchIssued(first),
        MatchLeased(first.id, "actor"),
        MatchIssued(second),
        MatchLeased(second.id, "actor"),
    ]
    assert (second.id, second.tables, second.episodes_per_table) == (first.id + 1, 3, 2)
    assert set(training.league.matches.open_matches) == {first.id, second.id}


def test_a_result_is_on_disk_when_the_report_returns(training: Training, controller: Controller) -> None:
    match = controller.next_match(4)
    result = result_of(match)
    controller.report(result)
    assert on_disk(training)[-1] == MatchFinished(result)
    assert training.league.matches.finished == 1


def test_matches_that_end_together_end_in_one_commit(
    training: Training, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = controller.next_trainings(4, ["main", "main", "main"])
    assert (second.id, third.id) == (first.id + 1, first.id + 2)
    assert {match.sides[0].players for match in (first, second, third)} == {("main",)}
    commits: list[int] = []
    append = Ledger.append

    def counted(ledger: Ledger, events: list[AnyEvent]) -> list[int]:
        commits.append(len(events))
        return append(ledger, events)

    monkeypatch.setattr(Ledger, "append", counted)
    results = [result_of(first), result_of(second, float("nan")), result_of(third)]
    controller.report_all(results)
    assert on_disk(training)[-3:] == [
        MatchFinished(results[0]),
        MatchFinished(results[2]),
        MatchVoid(second.id, "a score is not finite"),
    ]
    assert commits == [2, 1]
    controller.report_all([results[0], results[2]])  # sent twice
    assert commits == [2, 1]
    assert training.league.matches.finished == 2


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_makes_the_match_void(
    score: float, training: Training, controller: Controller
) -> None:
    match = controller.next_match(4)
    controller.report(result_of(match, score))
    assert on_disk(training)[-1] == MatchVoid(match.id, "a score is not finite")
    assert (training.league.matches.void, training.league.matches.finished) == (1, 0)
    controller.next_match(4)


def test_a_void_match_keeps_no_reason_of_any_length(training: Training, controller: Controller) -> None:
    """A bot that gave 60 MB as its reason, once a match, filled the disk with the ledger."""
    match = controller.next_match(4)
    controller.void_match(match.id, "bot 'old' says: " + "no " * 1_000_000 + "licence")
    [*_, void] = on_disk(training)
    assert isinstance(void, MatchVoid)
    assert len(void.reason) <= LONGEST_REASON
    assert void.reason.endswith("no licence")


def test_what_cannot_be_a_result_never_reaches_the_ledger(training: Training, controller: Controller) -> None:
    match = controller.next_match(4)
    before = on_disk(training)
    with pytest.raises(ValueError, match=f"result of match {match.id} is refused: pairs of sides"):
        controller.report(msgspec.structs.replace(result_of(match), pairs=()))
    with pytest.raises(UnknownMatchError, match="match 77 was never issued"):
        controller.report(msgspec.structs.replace(result_of(match), match_id=77))
    assert on_disk(training) == before, "a row that no league can fold would end the run for good"
    controller.report(result_of(match))
    assert on_disk(training)[-1] == MatchFinished(result_of(match))


def test_a_reset_voids_what_is_left(training: Training, controller: Controller) -> None:
    match = controller.next_match(4)
    training.league.apply(PlayerReset("main", 1, None))
    controller.report(result_of(match))
    assert on_disk(training)[-1] == MatchVoid(match.id, "a player was reset")
    assert (training.league.matches.void, training.league.matches.finished) == (1, 0)


def test_progress_is_noted_once(training: Training, controller: Controller) -> None:
    controller.step()
    noted = on_disk(training)
    assert [event for event in noted if isinstance(event, LearnerProgress)] == [LearnerProgress("main", 0, 0, 0)]
    assert controller.step() is IDLE
    assert on_disk(training) == noted


def test_the_first_snapshot_is_of_the_weights_at_the_start(training: Training, controller: Controller) -> None:
    controller.step()
    snapshot = on_disk(training)[-1]
    assert isinstance(snapshot, PlayerAdded)
    assert (snapshot.player, snapshot.parent, snapshot.model) == ("main.1", "main", "main:0:0")
    model, weights = controller.fetch_frozen("main.1")
    assert model == ModelId("main", 0, 0)
    live = training.learner.players["main"].weights()
    assert all((weights[name] == live[name]).all() for name in live)


def test_snapshots_are_evaluated_before_training_goes_on(training: Training, controller: Controller) -> None:
    assert controller.next_match(4).purpose == "training"
    controller.step()
    match = controller.next_match(4)
    assert match.purpose == "evaluation"
    assert [side.players for side in match.sides] == [("main.1",), ("random",)]
    assert not any(side.trains for side in match.sides)
    assert controller.next_match(4).purpose == "training", "while it is being measured"
    controller.report(result_of(match))
    assert controller.next_match(4).purpose == "training", "and afterwards"


def test_snapshots_know_their_parents(training: Training) -> None:
    training.run()
    frozen = [e for e in on_disk(training) if isinstance(e, PlayerAdded) and e.role == "frozen"]
    assert len(frozen) > 2
    models = [ModelId.parse(event.model or "") for event in frozen]
    assert training.folder.models.lineage(models[-1]) == tuple(reversed(models))
    assert [event.parent_decisions for event in frozen] == sorted(event.parent_decisions for event in frozen)
    for model, event in zip(models, frozen, strict=True):
        for variant in ("live", "average"):
            assert training.folder.models.entry(model, variant).facts == {"decisions": event.parent_decisions}


def test_the_first_snapshot_after_a_reset_has_no_parent(tmp_path: Path) -> None:
    role = Role(promotion=BySteps(every=60), initial_snapshot=False, reset_probability=1.0)
    described = experiment(ConnectFour(), budget=200, league=LeagueRules(roles={"main": role}, bots=("random",)))
    with closing(new_training(tmp_path / "run", described)) as training:
        training.run()
        frozen = [e.model for e in on_disk(training) if isinstance(e, PlayerAdded) and e.role == "frozen"]
        assert len(frozen) > 1
        for model in frozen:
            assert training.folder.models.lineage(ModelId.parse(model or "")) == (ModelId.parse(model or ""),)


@pytest.mark.parametrize("player", ["main", "random"])
def test_only_frozen_players_have_frozen_weights(player: str, controller: Controller) -> None:
    with pytest.raises(ValueError, match=f"player '{player}' .* has no frozen weights"):
        controller.fetch_frozen(player)


def test_the_best_of_a_one_team_game_is_tagged(tmp_path: Path) -> None:
    game = Gymnasium(env_id="CartPole-v1", max_length=30)
    described = experiment(game, budget=300, evaluation=EvaluationConfig(opponents=(), episodes=8))
    with closing(new_training(tmp_path / "run", described)) as training:
        training.run()
        events = on_disk(training)
        scores = [event for event in events if isinstance(event, ScoreMeasured)]
        assert len(scores) > 2
        results = {e.result.last_models[0]: e.result for e in events if isinstance(e, MatchFinished)}
        for score in scores:
            result = results[score.model]
            assert score.mean == result.score_sum[0] / result.episodes
            variance = result.score_square_sum[0] / result.episodes - score.mean**2
            assert score.standard_error == pytest.approx((max(variance, 0) / result.episodes) ** 0.5)
        best = max(scores, key=lambda score: score.mean)
        tagged = training.folder.models.resolve("main@best")
        assert next(s.mean for s in scores if s.model == str(tagged)) == best.mean


def test_a_best_snapshot_that_is_removed_is_the_best_no_more(tmp_path: Path) -> None:
    game = Gymnasium(env_id="CartPole-v1", max_length=30)
    described = experiment(game, budget=300, evaluation=EvaluationConfig(opponents=(), episodes=8))
    with closing(new_training(tmp_path / "run", described)) as training:
        training.run()
        before = best_snapshot(training.league, "main")
        assert before is not None
        training.controller.edit([PlayerRemoved(before, "by hand")])
        after = best_snapshot(training.league, "main")
        assert after is not None
        assert str(training.folder.models.resolve("main@best")) == training.league.players[after].model


def test_weights_of_snapshots_that_left_are_deleted_if_nothing_names_them(tmp_path: Path) -> None:
    """At the checkpoint after the next, by the ledger alone: what a kill has left over is deleted after a restart."""
    path = tmp_path / "run"
    history = BoundedHistory(size=4, strongest=0, delete_models=True)
    rules = LeagueRules(roles={"main": Role(promotion=BySteps(every=64), history=history)}, bots=("random",))
    described = experiment(ConnectFour(), league=rules, budget=1_500, checkpoint_every=150)
    with closing(new_training(path, described)) as training:
        training.run()
    folder = RunFolder.open(path)
    with folder.ledger(read_only=True) as ledger:
        rows = [*ledger.replay()]
        noted = ledger.latest_checkpoint()
    assert noted is not None
    left = [(row, event.player) for row, event in rows if isinstance(event, PlayerRemoved)]
    players = training.league.players
    files = {file.stem for file in path.glob("models/main/*.safetensors")}
    there = {player for _, player in left if players[player].model is not None and number_of(players[player]) in files}
    assert len(left) > 10
    assert len(there) < len(left) / 2
    assert {player for row, player in left if row > noted.row - 1} <= there
    for player in training.league.candidates.frozen():
        model = ModelId.parse(players[player].model or "")
        assert folder.models.fetch(model, players[player].weights)
        assert folder.models.lineage(model)
    assert all(part.whole for part in inspect_run(folder, read_ledger(folder, lambda event: None)))

    gone = next(player for _, player in left if player not in there)
    with pytest.raises(ConfigError, match=f"{gone} has left the league: the weights of main:.* were deleted"):
        load_players(described, folder, training.league, [gone])
    half = path / f"models/main/{number_of(players[gone])}.safetensors"
    half.write_bytes(b"as a kill leaves it: the description is gone, the weights are there")
    held, tagged = sorted(there)[:2] if len(there) > 1 else (None, next(iter(there)))
    folder.models.tag("mine", ModelId.parse(players[tagged].model or ""))
    before = read_ledger(folder, lambda event: None)
    with closing(serial_training(replace(described, budget=2_500), folder)) as training:
        training.run()
    [models] = [part for part in inspect_run(folder, before) if part.what == "models"]
    assert models.whole, "those that were deleted since it was read are not damaged"
    assert not half.exists()
    files = {file.stem for file in path.glob("models/main/*.safetensors")}
    assert number_of(players[tagged]) in files
    assert held is None or number_of(players[held]) not in files


def number_of(player: Player) -> str:
    model = ModelId.parse(player.model or "")
    return f"{model.incarnation}-{model.step}" + ("" if player.weights == "live" else f".{player.weights}")


def test_models_of_open_matches_and_of_ancestors_are_named(tmp_path: Path) -> None:
    with closing(new_training(tmp_path / "run", experiment(ConnectFour()))) as training:
        training.run()
        controller, league = training.controller, training.league
        frozen = [league.players[player] for player in league.candidates.frozen()]
        assert named_models(league) == {player.model for player in frozen}
        last = frozen[0]
        match = league.evaluation_match(10**6, ((last.id,), ("random",)), tables=1, episodes_per_table=1)
        controller.edit([MatchIssued(match), PlayerRemoved(last.id, RETIRED)])
        assert last.model in named_models(league)
        controller.edit([MatchVoid(match.id, "test")])
        assert last.model not in named_models(league)

"""Population-based training with real learners: takeovers happen exactly once, and bad settings die out."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.ppo import PPO
from ludus.config import encode
from ludus.data.records import AnyEvent, LearnerProgress, Match, ModelId, Pair, PlayerAdded, PlayerReset, Result
from ludus.experiment import Experiment
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.league.matchmaking import UniformPast
from ludus.league.players import POPULATION, SCRIPTED
from ludus.league.population import LogUniform, Population
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.league.takeovers import Takeover, due_takeovers
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import load_experiment, new_league
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.ledger import Ledger
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.controller import Controller

RATE = "learner.learning_rate"


def experiment(*, seed: int = 0, members: int = 3, budget: int = 1_000, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "search": (LogUniform(path=RATE, low=1e-9, high=1e-2),),
        "every": 1_000,
        "min_games": 50,
        "resample_probability": 0.0,
        **changes,
    }
    role = Role(count=members, matchmaking=UniformPast(over=SCRIPTED), population=Population(**settings))
    return Experiment(
        name="tiny",
        game=RockPaperScissors(),
        budget=budget,
        model=ActorCritic(hidden=(8,)),
        algorithm=PPO(entropy=0.0),
        actor=ActorConfig(num_tables=32, matches=1, episodes_per_table=2, unroll_length=4),
        learner=LearnerConfig(batch_size=128, minibatch_size=128, epochs=4, buffer_size=512, device="cpu"),
        league=LeagueRules(roles={"main": role}, bots=("rock",)),
        evaluation=EvaluationConfig(opponents=("rock",), past=0, episodes=64),
        seed=seed,
    )


def new_training(path: Path, described: Experiment) -> Coordinator[SerialWorkers]:
    return serial_training(described, RunFolder.create(path, encode(described), seed=0, command=()))


def started_again(path: Path) -> Coordinator[SerialWorkers]:
    folder = RunFolder.open(path)
    return serial_training(load_experiment(folder), folder)


def on_disk(path: Path) -> list[AnyEvent]:
    with Ledger(path / "ledger.db", read_only=True) as ledger:
        return [event for _, event in ledger.replay()]


def result_of(match: Match, wins: int) -> Result:
    return Result(
        match_id=match.id,
        episodes=match.episodes,
        steps=9,
        decisions=(1, 1),
        pairs=(Pair(0, 1, wins, 0, match.episodes - wins),),
        score_sum=(0.0, 0.0),
        score_square_sum=(0.0, 0.0),
        first_models=("", ""),
        last_models=("", ""),
    )


def play_so_that_the_last_is_best(controller: Controller) -> None:
    for _ in range(20):
        match = controller.next_match(32)
        is_best = match.sides[0].players[0].startswith("main_2")
        controller.report(result_of(match, match.episodes * (9 if is_best else 3) // 10))


def learn(training: Coordinator[SerialWorkers], player: str, decisions: int) -> None:
    """As if it had trained."""
    trained = training.learner.players[player]
    trained.step, trained.decisions = trained.step + 1, trained.decisions + decisions


def ready_to_take_over(path: Path) -> Coordinator[SerialWorkers]:
    """At its next step main_0, which is behind, will take over from main_2, which has learned on."""
    training = new_training(path, experiment())
    training.controller.step()
    play_so_that_the_last_is_best(training.controller)
    learn(training, "main_0", 1_000)
    learn(training, "main_2", 1)
    return training


def decided(path: Path, events: list[AnyEvent]) -> Takeover:
    """What the league decides after these events."""
    league = new_league(load_experiment(RunFolder.open(path)))
    for event in events:
        league.apply(event)
    (takeover,) = due_takeovers(league)
    return takeover


def resets_on_disk(path: Path) -> list[PlayerReset]:
    return [event for event in on_disk(path) if isinstance(event, PlayerReset)]


def are_those_of(training: Coordinator[SerialWorkers], player: str, model: str | None) -> bool:
    """The weights of a player are those of a model in the pool."""
    assert model is not None
    live, kept = (training.learner.players[player].weights(), training.folder.models.fetch(ModelId.parse(model)))
    return all((live[name] == array).all() for name, array in kept.items())


class KilledError(Exception):
    """The process ends here."""


def kill(*_: object) -> None:
    raise KilledError


def test_a_takeover_reaches_the_ledger_the_pool_and_the_learner(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with closing(ready_to_take_over(run)) as training:
        training.controller.step()
        *before, snapshot, reset = on_disk(run)
        takeover = decided(run, before)
        assert isinstance(snapshot, PlayerAdded)
        assert (snapshot.parent, snapshot.model, snapshot.reason) == ("main_2", "main_2:0:1", POPULATION)
        assert isinstance(reset, PlayerReset)
        assert (reset.player, reset.donor, reset.model) == ("main_0", "main_2", "main_2:0:1")
        assert reset.settings == takeover.settings
        assert are_those_of(training, "main_0", reset.model)
        player = training.learner.players["main_0"]
        assert player.config.learning_rate == takeover.settings[RATE]
        assert player.model.incarnation == 1
        training.controller.step()
        assert len(resets_on_disk(run)) == 1


def test_who_learns_on_while_it_is_frozen_is_judged_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot brings news of its own: they must not hide the end of the interval."""
    run = tmp_path / "run"
    with closing(ready_to_take_over(run)) as training:
        role = training.league.rules.roles["main"]
        training.league.rules = replace(
            training.league.rules, roles={"main": replace(role, promotion=BySteps(every=1_000))}
        )
        freeze = training.learner.freeze

        def learn_on(player: str, parent: ModelId | None) -> LearnerProgress:
            learn(training, player, 1)
            return freeze(player, parent)

        monkeypatch.setattr(training.learner, "freeze", learn_on)
        training.controller.step()
    assert [(reset.player, reset.donor) for reset in resets_on_disk(run)] == [("main_0", "main_2")]


def test_nobody_is_judged_again_by_news_of_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with closing(new_training(run, experiment())) as training:
        training.controller.step()
        learn(training, "main_0", 1_000)
        training.controller.step()
        play_so_that_the_last_is_best(training.controller)
        learn(training, "main_1", 1)
        training.controller.step()
        assert resets_on_disk(run) == []


def test_killed_before_the_commit_the_decision_comes_out_the_same_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with closing(ready_to_take_over(run)) as training:
        freeze = training.learner.freeze
        training.learner.freeze = lambda *given: kill(freeze(*given))  # type: ignore[method-assign, assignment]
        with pytest.raises(KilledError):
            training.controller.step()
    takeover = decided(run, on_disk(run))
    assert resets_on_disk(run) == []
    with closing(started_again(run)) as training:
        training.controller.step()
        (reset,) = resets_on_disk(run)
        assert (reset.player, reset.donor, reset.settings) == (takeover.player, takeover.donor, takeover.settings)
        assert are_those_of(training, "main_0", reset.model)
        assert training.learner.players["main_0"].config.learning_rate == takeover.settings[RATE]


def test_killed_after_the_commit_the_learner_catches_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with closing(ready_to_take_over(run)) as training:
        training.learner.reset = kill  # type: ignore[method-assign, assignment]
        with pytest.raises(KilledError):
            training.controller.step()
    (reset,) = resets_on_disk(run)
    with closing(started_again(run)) as training:
        training.controller.step()
        assert resets_on_disk(run) == [reset]
        frozen = [event for event in on_disk(run) if isinstance(event, PlayerAdded) and event.parent == "main_2"]
        assert [event.reason for event in frozen] == ["initial", POPULATION]
        assert are_those_of(training, "main_0", reset.model)
        assert training.learner.players["main_0"].config.learning_rate == reset.settings[RATE]


def one_good_start() -> Experiment:
    """An experiment whose seed gives one member a good learning rate and the others an absurd one."""
    described = experiment(budget=9_000)
    population = described.league.roles["main"].population
    assert population is not None
    for seed in range(1_000):
        rates = [population.new_settings(seed, f"main_{index}")[RATE] for index in range(3)]
        if sum(rate > 3e-3 for rate in rates) == 1 and sum(rate < 1e-7 for rate in rates) == 2:
            return replace(described, seed=seed)
    raise AssertionError("no seed draws such settings")


def test_absurd_settings_die_out(tmp_path: Path) -> None:
    described = one_good_start()
    with closing(new_training(tmp_path / "run", described)) as training:
        training.run()
        league = training.league
    (good,) = [player for player, (first, *_) in league.lineage.items() if first.settings[RATE] > 3e-3]
    for player, (_, *resets) in league.lineage.items():
        assert league.settings_of(player)[RATE] > 1e-3
        assert training.learner.players[player].config.learning_rate == league.settings_of(player)[RATE]
        if player != good:
            assert resets[0].donor is not None
            assert resets[0].model is not None
            assert ModelId.parse(resets[0].model).player == resets[0].donor
    frozen = {event.model for event in on_disk(tmp_path / "run") if isinstance(event, PlayerAdded)}
    assert {one.model for _, *resets in league.lineage.values() for one in resets} <= frozen
    replayed = new_league(described)
    for event in on_disk(tmp_path / "run"):
        replayed.apply(event)
    assert replayed.state_digest() == league.state_digest()


def test_a_stopped_population_goes_on_with_its_settings(tmp_path: Path) -> None:
    with closing(new_training(tmp_path / "run", experiment(budget=256))) as training:
        training.run()
        before = {player: trained.config for player, trained in training.learner.players.items()}
    assert len({config.learning_rate for config in before.values()}) == 3
    with closing(started_again(tmp_path / "run")) as training:
        assert {player: one.config for player, one in training.learner.players.items()} == before


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("learner.learning_rat", "cannot differ between players; did you mean 'learner.learning_rate'"),
        ("learner.batch_size", "'learner.batch_size' cannot differ between players; did you mean"),
        ("actor.num_tables", "cannot differ between players; what can: "),
        ("learner.epochs", "population.search, in learner: epochs: expected int, got 1e-09"),
    ],
)
def test_a_search_must_be_over_settings_of_one_player(search: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment(search=(LogUniform(path=search, low=1e-9, high=1e-2),))


def test_a_fitness_must_fit_the_game() -> None:
    with pytest.raises(ValueError, match=r"league\.roles\.main\.population\.fitness is 'score'.*use 'rating'"):
        experiment(fitness="score")

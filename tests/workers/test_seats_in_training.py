"""Short trainings for real on games of every shape, with policies by seat and teams of several players."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.config import encode
from ludus.data.records import Match, MatchFinished, MatchIssued
from ludus.evaluation.tournament import Tournament
from ludus.experiment import Experiment
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.game import GameSource
from ludus.league.matchmaking import PFSP, Live, UniformPast
from ludus.league.promotion import BySteps
from ludus.league.ratings import OpenSkillTable
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.league.summary import summarise
from ludus.models.network_policy import ActorCritic
from ludus.runtime.assemble import exact_report, load_experiment, load_players
from ludus.runtime.coordinator import Coordinator
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import SerialWorkers, serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig
from ludus.workers.player_cache import FixedPlayers

SHAPES: dict[str, GameSource] = {"two_seats": Hills(), "two_kinds": Siege(), "three_teams": Goofspiel()}
BATCH = 256


def experiment_on(
    game: GameSource, roles: dict[str, Role] | None = None, num_tables: int = 32, **settings: Any
) -> Experiment:
    main = Role(matchmaking=PFSP(include_scripted=True), promotion=BySteps(every=BATCH))
    return Experiment(
        name="seats",
        game=game,
        model=ActorCritic(hidden=(16,), channels=(4,), entity_size=8),
        actor=ActorConfig(num_tables=num_tables, matches=2, episodes_per_table=game.spec.num_teams, unroll_length=8),
        learner=LearnerConfig(batch_size=BATCH, minibatch_size=BATCH, epochs=1),
        league=LeagueRules(roles=roles or {"main": main}, bots=("random",)),
        evaluation=EvaluationConfig(opponents=("random",), past=0, episodes=8),
        **{"budget": 2 * BATCH, "runtime": "serial", **settings},
    )


@contextmanager
def trained(experiment: Experiment, path: Path) -> Iterator[Coordinator[SerialWorkers]]:
    """A run to its end, from the experiment as its folder has it."""
    folder = RunFolder.create(path / "run", encode(experiment), seed=0)
    training = serial_training(load_experiment(folder), folder)
    try:
        assert training.run() == FINISHED
        yield training
    finally:
        training.close()


def training_matches(training: Coordinator[SerialWorkers]) -> list[Match]:
    """Those that were played to their end."""
    events = [event for _, event in training.folder.ledger(read_only=True).replay()]
    finished = {event.result.match_id for event in events if isinstance(event, MatchFinished)}
    issued = [event.match for event in events if isinstance(event, MatchIssued)]
    return [match for match in issued if match.id in finished and match.purpose == "training"]


def skills(training: Coordinator[SerialWorkers]) -> dict[str, tuple[float, float]]:
    table = OpenSkillTable(seats=training.league.seats_per_team[0])
    for _, event in training.folder.ledger(read_only=True).replay():
        table.apply(event)
    return {player: table.skill(player) for player in training.league.players}


@pytest.mark.parametrize("policies", ["shared", "per_seat"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_trains_and_is_rated(shape: str, policies: Any, tmp_path: Path) -> None:
    experiment = experiment_on(SHAPES[shape], policies=policies)
    with trained(experiment, tmp_path) as training:
        league = training.league
        assert len(training.learner.players["main"].policies) == len(experiment.grouped_game.spec.kinds)
        assert training.learner.decisions >= experiment.budget
        assert league.payoffs.training.games("main", "random") + league.payoffs.training.games("main", "main.1")
        assert league.payoffs.evaluation.games("main.1", "random") >= 8
        elo = {rating.player: rating.elo for rating in summarise(league).ratings}
        assert all(elo[player] is not None for player in ("main.1", "main.2"))
        assert all(math.isfinite(value) for value in elo.values() if value is not None)
        assert all(math.isfinite(number) for skill in skills(training).values() for number in skill)


def test_every_policy_learns_and_is_kept(tmp_path: Path) -> None:
    """Also across a stop, in snapshots, and where players are loaded for matches apart."""
    experiment = experiment_on(Hills(), policies={"*/seat0": "first", "*": "second"})
    with trained(experiment, tmp_path) as training:
        folder = training.folder
        league = training.league
        weights = training.learner.players["main"].weights()
    assert {name.partition("/")[0] for name in weights} == {"first", "second"}
    seated = load_players(experiment, folder, league, ["main", "main.1", "spread"])
    begun = dict(seated["main.1"].policies[0].state_dict())
    for policy in (*seated["main"].policies, seated["main.1"].policies[1]):
        assert any((begun[name] != tensor).any() for name, tensor in policy.state_dict().items())
    tournament = Tournament(
        experiment.grouped_game,
        FixedPlayers(seated),
        [("main", "main.1"), ("main", "spread")],
        episodes=8,
        num_tables=4,
        seed=0,
    )
    results = tournament.run()
    assert [results[index].episodes for index in (0, 1)] == [8, 8]
    again = serial_training(load_experiment(folder), folder)
    resumed = again.learner.players["main"].weights()
    again.close()
    assert all((resumed[name] == array).all() for name, array in weights.items())


def test_exact_exploitability_is_for_shared_policies(tmp_path: Path) -> None:
    for policies, exact in (("shared", True), ("per_seat", False)):
        experiment = experiment_on(Kuhn(), policies=policies, budget=BATCH)
        with trained(experiment, tmp_path / str(policies)) as training:
            report = exact_report(experiment, training.folder, training.league)
        assert (report is not None) == exact


# --- teams of several players ---


def test_a_learner_among_scripted_team_mates(tmp_path: Path) -> None:
    role = Role(line_up={"seat0": "random", "seat1": "self"}, matchmaking=UniformPast())
    with trained(experiment_on(Hills(), {"main": role}, num_tables=8), tmp_path) as training:
        league = training.league
        own = {match.sides[0] for match in training_matches(training)}
        assert {side.players for side in own} == {("random", "main")}
        assert {side.trains for side in own} == {("main",)}
        assert league.payoffs.training.games("main", "main.1") > 0
        assert league.payoffs.combined.games("main", "main.1") == 0
        assert league.payoffs.training.games("random", "main.1") == 0
        rated = skills(training)
        assert rated["main"] != rated["random"] != (25.0, 25.0 / 3)
        # One seat of four learns: every decision of it, and none of the others, has been trained on.
        assert training.learner.decisions == league.standings["main"].decisions


def test_team_mates_that_train_together(tmp_path: Path) -> None:
    pair = Role(
        count=2, line_up={"seat0": "self", "*": "pair"}, trains="side", matchmaking=UniformPast(),
        promotion=BySteps(every=2 * BATCH),
    )  # fmt: skip
    with trained(experiment_on(Hills(), {"pair": pair}, num_tables=8, budget=4 * BATCH), tmp_path) as training:
        own = [match.sides[0] for match in training_matches(training)]
        assert {side.players for side in own} == {("pair_0", "pair_1"), ("pair_1", "pair_0")}
        assert all(side.trains is True for side in own)
        decisions = [training.learner.players[player].decisions for player in ("pair_0", "pair_1")]
        assert min(decisions) > 0
        assert max(decisions) - min(decisions) <= BATCH


def test_only_who_the_role_says_trains(tmp_path: Path) -> None:
    """The team-mate learns in its own matches alone."""
    roles = {
        "main": Role(line_up={"seat0": "self", "*": "mate"}),
        "mate": Role(matchmaking=UniformPast(over="scripted")),
    }
    with trained(experiment_on(Hills(), roles, num_tables=8, budget=4 * BATCH), tmp_path) as training:
        for match in training_matches(training):
            for side in match.sides:
                assert side.trainees == tuple({match.sides[0].stands_for} & {*side.players})
        assert training.league.payoffs.training.games("mate", "random") > 0


def test_everyone_trains_in_a_game_of_three_teams(tmp_path: Path) -> None:
    roles = {
        "main": Role(matchmaking=Live(role="rival"), trains="everyone"),
        "rival": Role(matchmaking=Live(role="main")),
    }
    with trained(experiment_on(Goofspiel(), roles), tmp_path) as training:
        league = training.league
        assert league.payoffs.training.games("main", "rival") > 0
        made_for_main = [m for m in training_matches(training) if m.sides[0].players == ("main",)]
        assert made_for_main
        assert all(side.trains for match in made_for_main for side in match.sides)
        assert min(training.learner.players[player].decisions for player in roles) > 0

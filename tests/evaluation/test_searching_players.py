"""Players that search with their network, in `ludus eval`, `play` and `exploit`, and as members of a league."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Ludus
from whole_runs import run_whole, tiny

import ludus as front_door
from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero
from ludus.algorithms.ppo import PPO
from ludus.config import ConfigError, encode
from ludus.data.search import SEARCH_POLICY, GumbelSearch
from ludus.games.builtin.blotto import Blotto
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.league.matchmaking import UniformPast
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.runtime.device import require_on_device
from ludus.runtime.processes import local_training
from ludus.runtime.rounds import FINISHED
from ludus.runtime.serial import serial_training
from ludus.runtime.start import find_initial_models
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import ActorConfig
from ludus.workers.config import LearnerConfig

SEARCHING = tiny(TicTacToe(), algorithm=GumbelAlphaZero(search=GumbelSearch(simulations=8)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("searching") / "run"
    run_whole(path, SEARCHING)
    return str(path)


def test_eval_measures_a_player_with_and_without_search(ludus: Ludus, run: str) -> None:
    code, out, _ = ludus("eval", run, "main@best?search=24", "main@best", "main.1?search=2", "-n", "40", "--json")
    assert code == 0, out
    first = front_door.Run(run).evaluate("main@best?search=24", "main@best", "rules", games=40)
    assert first.win_rate > 0.7
    assert first.rows[0]["players"] == ["main@best?search=24", "main@best"]
    assert first.rows[0]["weights"][0] in ("live", "average")


@pytest.mark.parametrize(
    ("player", "message"),
    [
        ("main?search=none", "main: search must be a number of simulations from 1 to 10,000, got 'none'"),
        ("main?search=0", "search must be a number of simulations from 1 to 10,000, got '0'"),
        ("main?search=1000000000", "search must be a number of simulations from 1 to 10,000, got '1000000000'"),
        ("rules?search=8", "rules?search=8: rules is a bot; only a player with a network can search"),
        ("mian?search=8", "unknown player 'mian'; did you mean 'main'?"),
    ],
)
def test_wrong_names_are_explained(ludus: Ludus, run: str, player: str, message: str) -> None:
    code, _, error = ludus("eval", run, player, "random", "-n", "8")
    assert code == 2
    assert message in error


def test_games_that_cannot_be_searched_say_why(ludus: Ludus, tmp_path: Path) -> None:
    run_whole(tmp_path / "kuhn", tiny(Kuhn()))
    code, _, error = ludus("eval", str(tmp_path / "kuhn"), "main?search=8", "random", "-n", "8")
    assert code == 2
    assert "main?search=8: " in error
    assert "it has hidden information" in error


def test_networks_with_a_memory_cannot_search(ludus: Ludus, tmp_path: Path) -> None:
    run_whole(tmp_path / "run", tiny(TicTacToe(), model=ActorCritic(hidden=(8,), memory=4)))
    code, _, error = ludus("eval", str(tmp_path / "run"), "main?search=8", "random", "-n", "8")
    assert code == 2
    assert "a network with a memory cannot search" in error


def test_an_agent_without_a_table_cannot_search(run: str) -> None:
    with pytest.raises(ConfigError, match="a search needs the table itself"):
        front_door.load_agent(run, "main@best?search=8")


def test_a_person_plays_against_a_search(ludus: Ludus, run: str) -> None:
    code, out, _ = ludus(
        *("play", run, "main.1?search=16", "--terminal", "--seat", "0", "--thoughts"),
        typed="1\n2\n3\n4\n5\n6\n7\n8\n9\n",
    )
    assert "it expects a score of" in out
    assert code in (0, 1), "the moves may run out before the game does"


def test_exploit_trains_against_a_search(ludus: Ludus, run: str) -> None:
    code, out, _ = ludus(
        *("exploit", run, "main@best?search=4", "--train", "--budget", "128", "--runtime", "serial", "-n", "8")
    )
    assert code == 0, out
    assert "against main@best?search=4" in out


def test_a_member_of_a_league_searches(run: str, tmp_path: Path) -> None:
    """The same weights, once with a search: it wins more."""
    external = {"plain": f"{run}#main:0:0", "strong": f"{run}#main:0:0?search=24"}
    role = Role(matchmaking=UniformPast(), promotion=BySteps(every=400))
    league = LeagueRules(roles={"main": role}, external=external, bots=("random",))
    asked = tiny(TicTacToe(), league=league, budget=800)
    assert asked.league.searching == {"strong": 24}
    folder = RunFolder.create(tmp_path / "league", encode(asked), seed=asked.seed, command=())
    experiment = find_initial_models(asked, None).put_into(folder.models)
    assert experiment.league.external["strong"].endswith("?search=24")
    with closing(serial_training(experiment, folder)) as training:
        assert training.run() == FINISHED
        payoff = training.league.payoffs.view("training")
        model = training.league.players["strong"].model
    assert model is not None
    assert "?" not in model
    assert payoff.games("main", "strong") > 40
    assert payoff.win_rate("main", "strong") < payoff.win_rate("main", "plain") - 0.1


def test_trajectories_carry_what_the_search_found(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", encode(SEARCHING), seed=3, command=())
    with closing(serial_training(SEARCHING, folder)) as training:
        assert training.run() == FINISHED
        [pool] = training.workers._pools
        policy, legal = pool.rows[SEARCH_POLICY], pool.rows["legal.move"]
        written = policy.sum(-1) > 0
        assert written.sum() > 100
        assert np.allclose(policy[written].sum(-1), 1.0, atol=1e-5)
        assert (policy[written & pool.rows["decision"]][~legal[written & pool.rows["decision"]]] < 1e-6).all()


@pytest.mark.slow
def test_training_by_search_gets_stronger(tmp_path: Path) -> None:
    experiment = tiny(
        TicTacToe(),
        budget=80_000,
        model=ActorCritic(hidden=(64,)),
        algorithm=GumbelAlphaZero(search=GumbelSearch(simulations=16, c_scale=0.1)),
        openings=front_door.Openings(moves=6),
        actor=ActorConfig(num_tables=64, matches=2, episodes_per_table=2, unroll_length=5),
        learner=LearnerConfig(batch_size=1_000, minibatch_size=200, epochs=4, learning_rate=3e-3),
    )
    run_whole(tmp_path / "run", experiment)
    measured = front_door.Run(tmp_path / "run").evaluate("main", "random", games=200)
    assert measured.win_rate > 0.85


def test_local_processes_train_by_search(tmp_path: Path) -> None:
    experiment = replace(SEARCHING, runtime="local", actors=1)
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=3, command=())
    with closing(local_training(experiment, folder, num_actors=1)) as training:
        assert training.run() == FINISHED


def test_what_cannot_be_trained_by_search_is_refused() -> None:
    search = GumbelAlphaZero()
    with pytest.raises(ValueError, match=r"algorithm\.search: .* it has hidden information"):
        tiny(Kuhn(), algorithm=search)
    with pytest.raises(ValueError, match=r"algorithm\.search: players that search need actor\.inference=inline"):
        tiny(TicTacToe(), algorithm=search, actor=ActorConfig(num_tables=8, matches=2, inference="worker"))
    with pytest.raises(ValueError, match=r"algorithm\.search: a network with a memory"):
        tiny(TicTacToe(), algorithm=search, model=ActorCritic(memory=4))
    with pytest.raises(ValueError, match=r"league\.external: .* cannot be searched"):
        tiny(
            Blotto(),
            league=LeagueRules(roles={"main": Role(matchmaking=UniformPast())}, external={"a": "a:0:0?search=8"}),
        )
    roles = {name: Role(matchmaking=UniformPast()) for name in ("main", "exploiter")}
    roles["exploiter"] = replace(roles["exploiter"], algorithm=PPO())
    rules = LeagueRules(roles=roles)
    with pytest.raises(
        ConfigError, match=r"roles\.main\.algorithm and .*exploiter\.algorithm search in different ways"
    ):
        require_on_device(tiny(ConnectFour(), algorithm=search, league=rules, runtime="device"))

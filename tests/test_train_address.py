"""`ludus train ADDRESS`: every game trains at once, with defaults that follow from what kind of game it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import Ludus

from ludus.agent import load_agent
from ludus.algorithms.magnet import MagnetPolicyGradient
from ludus.algorithms.ppo import PPO
from ludus.config import ConfigError
from ludus.data.schedules import at
from ludus.data.specs import ActionSpec, Box, Choice, GameSpec, ObservationSpec, Part, Planes, Vector
from ludus.defaults import (
    GameTraits,
    affordable_batch,
    default_actor,
    default_algorithm,
    default_budget,
    default_evaluation,
    default_league,
    default_learner,
    default_model,
    describe_defaults,
    facts_of,
    fit_to_teams,
    goal_of,
    has_pictures,
    hides_information,
    last_magnet_weight,
    reward_scale,
)
from ludus.games.builtin.sumo import Sumo
from ludus.games.catalog import resolve
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import ByScore, BySteps
from ludus.lookup import explained_experiment, find_experiment
from ludus.models.network_policy import ActorCritic

OWN_GAMES = '''
import numpy as np
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.game import TableView, Turn
from ludus.games.lift import Lifted

class Nim:
    """Eleven sticks: each seat takes one to three, and the seat that takes the last one wins."""

    spec = GameSpec.symmetric(
        name="nim", num_seats=2, observation=ObservationSpec(parts={"left": Vector(size=12)}),
        action=ActionSpec(heads={"take": Choice(num=3)}), max_length=12, hidden_information=False,
    )

    def reset(self, seed):
        self.left, self.mover = 11, 0
        return self.turn()

    def step(self, actions):
        self.left -= actions[self.mover] + 1
        if self.left == 0:
            return Turn(observations={}, over=True, reward={self.mover: 1.0, 1 - self.mover: -1.0})
        self.mover = 1 - self.mover
        return self.turn()

    def turn(self):
        left = np.zeros(12, np.float32)
        left[self.left] = 1.0
        return Turn(observations={self.mover: left}, legal={self.mover: np.arange(3) < self.left})


def table():
    return Nim()


def source():
    return Lifted(Nim)


SOURCE = Lifted(Nim)


class Echo:
    """Many tables at once: the only seat sees a flag and names it."""

    spec = GameSpec.symmetric(
        name="echo", num_seats=1, observation=ObservationSpec(parts={"flag": Vector(size=4)}),
        action=ActionSpec(heads={"say": Choice(num=4, masked=False)}), max_length=1, zero_sum=False,
    )

    def __init__(self, num_tables):
        self.num_tables = num_tables
        self.view = TableView.allocate(self.spec, num_tables)
        self.view.over[:] = True
        self.flag = np.zeros(num_tables, np.int64)

    def reset(self, tables, seeds):
        view = self.view
        view.over[tables], view.to_act[tables] = False, True
        view.reward[tables] = view.score[tables] = 0.0
        self.flag[tables] = seeds % 4
        view.observation[0]["flag"][tables] = np.eye(4, dtype=np.float32)[self.flag[tables]][:, None]

    def step(self, actions):
        view, live = self.view, self.view.to_act[:, 0].copy()
        right = (actions[0]["say"][:, 0] == self.flag).astype(np.float32)
        view.reward[live, 0] = view.score[live, 0] = right[live]
        view.over[live], view.to_act[:] = True, False

    def close(self):
        pass


def tables(num_tables):
    return Echo(num_tables)


def number():
    return 3
'''


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN_GAMES)
    return file


def spec(seats: int = 2, *, teams: tuple[int, ...] | None = None, part: Part | None = None) -> GameSpec:
    return GameSpec.symmetric(
        name="some game",
        num_seats=seats,
        observation=ObservationSpec(parts={"seen": part or Vector(size=3)}),
        action=ActionSpec(heads={"move": Choice(num=2)}),
        max_length=100,
        teams=teams,
        zero_sum=False,
    )


SCREEN = Planes(channels=4, height=84, width=84, dtype="uint8")
BOARD = Planes(channels=3, height=6, width=7)


@pytest.mark.parametrize(
    ("facts", "goal"),
    [
        (GameTraits(spec=spec(1)), "score"),
        (GameTraits(spec=spec(3, teams=(0, 0, 0)), hidden=True), "score"),
        (GameTraits(spec=spec(), hidden=False), "strength"),
        (GameTraits(spec=spec()), "strength"),
        (GameTraits(spec=spec(), hidden=True), "equilibrium"),
        (GameTraits(spec=spec(), hidden=True, decisions=500.0), "equilibrium"),
        (GameTraits(spec=spec(), simultaneous=True, decisions=5.0), "equilibrium"),
        (GameTraits(spec=spec(), simultaneous=True, decisions=500.0), "strength"),
        (GameTraits(spec=spec(3), simultaneous=True, decisions=1.0), "equilibrium"),
    ],
)
def test_the_goal_follows_from_teams_and_information(facts: GameTraits, goal: str) -> None:
    assert goal_of(facts) == goal


def test_hidden_information_gets_a_magnet_whose_weight_falls() -> None:
    algorithm = default_algorithm(GameTraits(spec=spec(), hidden=True), 1_000_000)
    assert isinstance(algorithm, MagnetPolicyGradient)
    assert at(algorithm.magnet_weight, 1.0) < at(algorithm.magnet_weight, 0.5) < at(algorithm.magnet_weight, 0.0)
    assert isinstance(default_algorithm(GameTraits(spec=spec(), hidden=False), 1_000_000), PPO)
    role = default_league(GameTraits(spec=spec(), hidden=True), 1_000_000).roles["main"]
    assert isinstance(role.matchmaking, SelfPlay)
    assert role.promotion == BySteps(every=100_000)


@pytest.mark.parametrize(("budget", "weight"), [(200_000, 0.1), (1_000_000, 0.1), (4_000_000, 0.05)])
def test_the_magnet_lets_go_as_far_as_the_budget_allows(budget: int, weight: float) -> None:
    assert last_magnet_weight(budget) == weight


def test_a_small_game_gets_a_magnet_that_moves() -> None:
    small = GameTraits(spec=spec(), hidden=True, variety=0.01)
    copies = {}
    for budget in (100_000, 500_000, 1_000_000, 10_000_000):
        algorithm = default_algorithm(small, budget)
        assert isinstance(algorithm, MagnetPolicyGradient)
        assert algorithm.magnet is not None
        copies[budget] = algorithm.magnet.copy_every
    assert copies == {100_000: 10, 500_000: 20, 1_000_000: 40, 10_000_000: 40}
    assert "moving" in describe_defaults(small)


@pytest.mark.parametrize(
    ("deviation", "largest", "scale"),
    [(1.0, 1.0, 1.0), (4.3, 13.0, 0.23), (0.8, 1.0, 1.0), (0.05, 1.0, 1.0), (0.01, 0.02, 50.0)],
)
def test_stakes_are_brought_to_one(deviation: float, largest: float, scale: float) -> None:
    facts = GameTraits(spec=spec(), hidden=True, deviation=deviation, largest=largest)
    assert reward_scale(facts) == scale


def test_one_seat_gets_small_batches_and_snapshots_by_score() -> None:
    facts = GameTraits(spec=spec(1), decisions=200.0)
    learner, actor = default_learner(facts), default_actor(facts)
    assert default_budget(facts) // learner.batch_size > 100, "updates"
    assert learner.epochs * learner.batch_size // learner.minibatch_size >= 8, "gradient steps of an update"
    assert actor.num_tables * actor.unroll_length <= learner.batch_size, "a round of trajectories is one batch"
    league = default_league(facts, 300_000)
    assert isinstance(league.roles["main"].promotion, ByScore)
    assert league.bots == default_evaluation(facts, 300_000).opponents == ()


@pytest.mark.parametrize("teams", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("decisions", [1.0, 12.0, 300.0])
def test_every_side_sits_on_every_team_equally_often(teams: int, decisions: float) -> None:
    actor = default_actor(GameTraits(spec=spec(teams), decisions=decisions))
    assert actor.episodes_per_table % teams == 0
    assert actor.num_tables % actor.matches == 0
    assert fit_to_teams(4, 3) == 6
    assert fit_to_teams(6, 3) == 6


@pytest.mark.parametrize("seats", [1, 2, 3, 6, 10, 60])
@pytest.mark.parametrize("part", [None, BOARD, SCREEN])
def test_a_round_of_trajectories_is_at_most_one_batch(seats: int, part: Part | None) -> None:
    facts = GameTraits(spec=spec(seats, part=part), decisions=40.0)
    actor, learner = default_actor(facts), default_learner(facts)
    assert actor.num_tables * actor.unroll_length * seats <= learner.batch_size
    assert actor.num_tables % actor.matches == 0


def test_long_episodes_get_longer_unrolls() -> None:
    unrolls = [default_actor(GameTraits(spec=spec(), decisions=length)).unroll_length for length in (1.0, 12.0, 500.0)]
    assert unrolls == [8, 16, 32]
    assert default_actor(GameTraits(spec=spec(1, part=SCREEN), decisions=900.0)).unroll_length == 128


def test_pictures_get_convolutions_and_small_minibatches() -> None:
    facts = GameTraits(spec=spec(1, part=SCREEN), decisions=900.0)
    model = default_model(facts)
    assert has_pictures(facts.spec)
    assert not has_pictures(spec(part=BOARD))
    assert isinstance(model, ActorCritic)
    assert model.channels == (8, 16, 32)
    assert not model.separate_critic, "one tower reads the picture"
    assert default_learner(facts).buffer_size * 4 * 84 * 84 < 2**28, "bytes of pictures that wait"
    assert "convolutions" in describe_defaults(facts)


def test_large_pictures_get_small_batches_and_more_convolutions() -> None:
    facts = GameTraits(spec=spec(2, part=Planes(channels=3, height=480, width=280, dtype="uint8")), decisions=900.0)
    learner, actor, model = default_learner(facts), default_actor(facts), default_model(facts)
    assert isinstance(model, ActorCritic)
    assert model.channels == (8, 16, 32, 32, 32)
    assert learner.batch_size == 512
    assert learner.buffer_size * 3 * 480 * 280 < 2**30
    assert actor.unroll_length * actor.num_tables * 2 <= learner.batch_size
    assert affordable_batch(spec(), 8_192) == 8_192


def test_evaluation_stays_a_small_part_of_the_budget() -> None:
    short = default_evaluation(GameTraits(spec=spec(), decisions=5.0), 1_000_000)
    long = default_evaluation(GameTraits(spec=spec(), decisions=5_000.0), 1_000_000)
    assert (short.episodes, long.episodes) == (512, 4)


@pytest.mark.parametrize("address", ["kuhn", "leduc", "blotto", "rock_paper_scissors"])
def test_trees_that_hide_something_are_found(address: str) -> None:
    root = resolve(address).tree()
    assert root is not None
    assert hides_information(root)


def test_two_ways_to_a_position_hide_nothing() -> None:
    root = resolve("tic_tac_toe").tree()
    assert root is not None
    assert not hides_information(root)


def test_facts_come_from_the_spec_the_tree_and_random_play() -> None:
    kuhn, tic_tac_toe = facts_of(resolve("kuhn")), facts_of(resolve("tic_tac_toe"))
    assert (kuhn.hidden, kuhn.simultaneous) == (True, False)
    assert 1.0 < kuhn.decisions < 1.5
    assert 1.0 <= kuhn.deviation < kuhn.largest == 2.0
    assert kuhn.variety < 0.05, "it has twelve information states"
    assert (tic_tac_toe.hidden, tic_tac_toe.simultaneous) == (False, False)
    assert tic_tac_toe.opponents[0] == "random"
    blotto = facts_of(resolve("blotto"))
    assert blotto.simultaneous
    assert blotto.decisions == 1.0
    assert facts_of(resolve("kuhn")) == kuhn, "the same every time"


def test_bots_that_search_are_too_slow_for_every_evaluation() -> None:
    game = resolve("connect_four")
    assert {"random"} <= set(facts_of(game).opponents) < set(game.bots())


def test_a_recipe_wins_over_a_game_of_the_same_name() -> None:
    experiment, why = explained_experiment("kuhn", ())
    assert (experiment.name, why) == ("kuhn", None)
    assert experiment.evaluation.opponents == ("random", "equilibrium")
    _, why = explained_experiment("tic_tac_toe", ())
    assert why is not None
    assert "\n" not in why


def test_defaults_follow_the_options_of_the_game_and_the_budget() -> None:
    experiment = find_experiment("ludus.games.builtin.kuhn:Kuhn", ("game.seats=3", "budget=2e5", "learner.epochs=7"))
    assert experiment.game.spec.num_teams == 3
    assert experiment.actor.episodes_per_table % 3 == 0
    assert experiment.budget == 200_000
    assert experiment.checkpoint_every == 20_000
    assert experiment.learner.epochs == 7


def test_a_recipe_plays_another_game() -> None:
    experiment = find_experiment("connect_four", ("game=kuhn", "game.seats=3", "budget=1e4"))
    assert (experiment.name, experiment.game.spec.num_teams) == ("connect_four", 3)
    assert experiment.actor.episodes_per_table == 6
    assert experiment.evaluation.opponents == ("random",), "the other bots are not those of this game"
    assert isinstance(experiment.algorithm, PPO)


@pytest.mark.parametrize("name", ["Nim", "table", "source", "SOURCE"])
def test_a_game_of_ones_own(own_file: Path, name: str) -> None:
    experiment, why = explained_experiment(f"{own_file}:{name}", ("budget=1000",))
    assert experiment.name == "nim"
    assert why is not None
    assert why.startswith("2 teams that see everything")


@pytest.mark.parametrize("name", ["Echo", "tables"])
def test_a_batch_of_ones_own(own_file: Path, name: str) -> None:
    game = resolve(f"{own_file}:{name}")
    assert game.tables(5).num_tables == 5
    assert set(game.bots()) == {"random"}
    assert find_experiment(f"{own_file}:{name}", ()).name == "echo"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tic_tac_to", "did you mean 'tic_tac_toe'"),
        ("conect_four", "did you mean 'connect_four'"),
        ("openspil:hex", "did you mean 'openspiel:hex'"),
        ("own.py", "which function"),
        ("own.py:Nin", "did you mean 'Nim'"),
        ("own.py:number", "gives 3, neither an Experiment nor a game"),
    ],
)
def test_wrong_addresses_name_the_nearest(
    own_file: Path, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.chdir(own_file.parent)
    with pytest.raises(ConfigError, match=message):
        find_experiment(address, ())


@pytest.mark.parametrize("name", ["classic/tictactoe", "classic.tictactoe", "classic.tictactoe_v3", "tictactoe"])
def test_spellings_of_pettingzoo(name: str) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    assert resolve(f"pettingzoo:{name}") == resolve("pettingzoo:classic.tictactoe_v3")


@pytest.mark.parametrize(
    ("address", "message"),
    [("classic/tictacto", "classic.tictactoe_v3"), ("tictacto", "classic.tictactoe_v3"), ("clasic/go", "families are")],
)
def test_misspelt_names_of_pettingzoo(address: str, message: str) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    with pytest.raises(ConfigError, match=message):
        find_experiment(f"pettingzoo:{address}", ())


def test_versions_of_gymnasium_and_its_continuous_actions() -> None:
    pytest.importorskip("gymnasium")
    assert resolve("gymnasium:CartPole") == resolve("gymnasium:CartPole-v1")
    for settings, head in (((), Box(size=1, low=-2.0, high=2.0)), (("game.bins=11",), Choice(num=11, masked=False))):
        pendulum = find_experiment("gymnasium:Pendulum-v1", settings)
        assert list(pendulum.game.spec.kinds[0].action.heads.values()) == [head]
        assert isinstance(pendulum.model, ActorCritic)
        assert pendulum.model.value_normalisation, "its scores are in the hundreds"
    assert goal_of(facts_of(Sumo())) == "strength"


def test_openspiel_says_what_is_hidden() -> None:
    pytest.importorskip("pyspiel")
    assert goal_of(facts_of(resolve("openspiel:liars_dice"))) == "equilibrium"
    assert goal_of(facts_of(resolve("openspiel:hex"))) == "strength"
    assert goal_of(facts_of(resolve("openspiel:goofspiel(num_cards=4,players=3)"))) == "equilibrium"
    assert facts_of(resolve("openspiel:leduc_poker")).deviation == pytest.approx(4.3, rel=0.2)


def train(ludus: Ludus, address: str, *settings: str) -> str:
    given = [part for setting in settings for part in ("--set", setting)]
    shown = ludus("train", address, "--runtime", "serial", *given)
    assert shown.code == 0, shown.err
    return shown.out


@pytest.mark.parametrize(
    ("address", "settings", "reason"),
    [
        ("goofspiel", ("evaluation.episodes=6",), "moves at the same time"),
        ("own.py:Nim", ("evaluation.episodes=16",), "2 teams that see everything"),
        ("own.py:Echo", (), "one seat"),
    ],
)
def test_it_trains(own_file: Path, ludus: Ludus, address: str, settings: tuple[str, ...], reason: str) -> None:
    output = train(ludus, address, "budget=1000", "learner.batch_size=512", "actor.num_tables=32", *settings)
    assert f"defaults:   {reason}" in output
    assert "finished after" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    [
        "openspiel:hex",
        "openspiel:matrix_rps",
        "openspiel:kuhn_poker(players=3)",
        "pettingzoo:classic/tictactoe",
        "pettingzoo:mpe/simple_tag",
        "gymnasium:Acrobot-v1",
        "hills",
        "siege",
        "rock_paper_scissors",
        "tic_tac_toe",
    ],
)
def test_games_of_all_families_train(ludus: Ludus, address: str) -> None:
    library = address.partition(":")[0]
    pytest.importorskip({"openspiel": "pyspiel"}.get(library, library) if ":" in address else "numpy")
    assert "finished after" in train(ludus, address, "budget=3000", "evaluation.episodes=12")


def test_a_game_of_real_numbers_trains_is_measured_and_acts_within_its_bounds(ludus: Ludus, tmp_path: Path) -> None:
    run = tmp_path / "pendulum"
    small = ("runtime=serial", "budget=4096", "evaluation.episodes=4")
    code, _, err = ludus(
        "train", "gymnasium:Pendulum-v1", "--run", str(run), "--quiet", *(f"--set={one}" for one in small)
    )
    assert code == 0, err
    code, out, err = ludus("eval", str(run), "main", "-n", "8")
    assert code == 0, err
    assert "mean score" in out
    agent = load_agent(run, "main")
    action = agent.act({"observation": np.array([1.0, 0.0, 0.0], np.float32)})
    assert action.shape == (1,)
    assert -2.0 <= float(action[0]) <= 2.0

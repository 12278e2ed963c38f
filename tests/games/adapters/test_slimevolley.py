"""SlimeVolley: the same game as its own environment, its own player, and pictures."""

from __future__ import annotations

import importlib.util
import warnings

import numpy as np
import pytest

from ludus.games.adapters import slimevolley as adapter
from ludus.games.adapters.slimevolley import MOVES, SlimeVolley, SlimeVolleyTables
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.recording import RecordedTables

ONE, RNG = np.array([0]), np.random.default_rng(0)


@pytest.fixture(scope="module")
def library() -> object:
    if importlib.util.find_spec("slimevolleygym") is None:
        pytest.skip("slimevolleygym is not installed; pip install -e '.[slimevolley]' adds it")
    return adapter._load_library()


def tables(seed: int = 5, **options: int) -> SlimeVolleyTables:
    made = SlimeVolley(**options).tables(1)
    assert isinstance(made, SlimeVolleyTables)
    made.reset(ONE, np.array([seed], np.uint64))
    return made


def play(game: SlimeVolleyTables, right: int, left: int) -> None:
    game.step(({"move": np.array([[right, left]], np.int32)},))


def test_its_spec_needs_no_library() -> None:
    spec = SlimeVolley(max_length=7).spec
    assert (spec.num_seats, spec.max_length, spec.kinds[0].num_options("move")) == (2, 7, 6)


@pytest.mark.usefixtures("library")
def test_it_keeps_its_promises() -> None:
    report = check_game(resolve("slimevolley"), episodes=8, max_steps=800, bot_seconds=0.3)
    assert report.ok, str(report)


def test_it_is_the_game_of_its_environment_and_the_bot_its_own_player(library: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = library.SlimeVolleyEnv()  # type: ignore[attr-defined]
    env.game = library.Game(np_random=np.random.default_rng(5))  # type: ignore[attr-defined]
    right, baseline = library.BaselinePolicy(), SlimeVolley().bots()["baseline"]  # type: ignore[attr-defined]
    game, seen, points, done = tables(), env.game.agent_right.getObservation(), 0, False
    while not done:
        moves = [baseline.act(game, ONE, np.array([seat]), RNG)["move"][0] for seat in (0, 1)]
        buttons = right.predict(seen)
        both = buttons[:2] == [1, 1]  # they cancel each other
        assert MOVES[moves[0]] == ((0, 0, buttons[2]) if both else tuple(buttons))
        play(game, *moves)
        seen, reward, done, info = env.step(buttons)  # its own player on the left
        court = game.view.observation[0]["court"][0]
        np.testing.assert_allclose(court, [seen, info["otherObs"]], atol=1e-6)
        assert game.view.reward[0].tolist() == [reward, -reward]
        points += reward
    assert game.view.score[0].tolist() == [points, -points]
    assert (game.view.over | game.view.truncated)[0]


@pytest.mark.usefixtures("library")
def test_a_lost_game_is_over_and_a_long_one_is_cut_off() -> None:
    game = tables()
    while game.view.to_act.any():
        play(game, 1, 0)  # the right walks to the net and lets every ball fall behind it
    assert game.view.over[0]
    assert abs(game.view.score[0]).max() >= 1
    assert game.view.score[0].sum() == 0
    game = tables(max_length=3)
    for _ in range(3):
        assert not game.view.truncated[0]
        play(game, 0, 0)
    assert game.view.truncated[0]
    assert not game.view.over[0]


@pytest.mark.usefixtures("library")
def test_a_wrong_move_is_named() -> None:
    with pytest.raises(ValueError, match="table 0, seat 1: move 6 is not one of 0 to 5"):
        play(tables(), 0, 6)


@pytest.mark.usefixtures("library")
def test_its_own_player_can_be_recorded() -> None:
    source, kept = SlimeVolley(max_length=3), []
    game = RecordedTables(source.tables(1), kept.append)
    game.reset(ONE, np.array([5], np.uint64))
    for _ in range(3):
        moves = [source.bots()["baseline"].act(game, ONE, np.array([seat]), RNG)["move"][0] for seat in (0, 1)]
        game.step(({"move": np.array([moves], np.int32)},))
    assert len(kept) == 1
    with pytest.raises(TypeError, match="only at tables of slimevolley, not TicTacToe"):
        source.bots()["baseline"].act(resolve("tic_tac_toe").tables(1), ONE, ONE, RNG)


@pytest.mark.usefixtures("library")
def test_the_court_is_drawn() -> None:
    game = tables()
    before = game.render(0)
    assert (before.shape, before.dtype) == ((240, 480, 3), np.uint8)
    for _ in range(5):
        play(game, 5, 1)
    assert (game.render(0) != before).any()


@pytest.mark.usefixtures("library")
def test_importing_the_library_changes_nothing_else() -> None:
    assert np.get_printoptions()["threshold"] == 1000

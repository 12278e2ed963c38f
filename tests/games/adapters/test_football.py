import subprocess
from typing import Any

import numpy as np
import pytest

from ludus.games.adapters.football import MINIMAP, NUM_STATE, BuiltinBot, Football, SideView, picture
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.environments import environment_python
from ludus.games.game import allocate_actions
from ludus.games.seat_rows import GameError

PYTHON = environment_python("football")
needs_game = pytest.mark.skipif(PYTHON is None, reason="not built: ludus games --install football")


def match(turned: bool) -> dict[str, Any]:
    """A moment of a match of two against one, or the same moment with the sides changed."""
    sign, own, other = (-1.0, "right", "left") if turned else (1.0, "left", "right")
    lasting = [0.0] * 10
    lasting[1 if not turned else 5] = 1.0  # towards its own goal and up; turned: forward and down
    lasting[8] = 1.0
    return {
        f"{own}_team": sign * np.array([[-0.9, 0.0], [0.3, 0.2]]),
        f"{own}_team_direction": sign * np.array([[0.0, 0.0], [0.01, -0.02]]),
        f"{other}_team": sign * np.array([[0.8, -0.1]]),
        f"{other}_team_direction": sign * np.array([[-0.01, 0.0]]),
        "ball": np.array([sign * 0.31, sign * 0.21, 0.4]),
        "ball_direction": np.array([sign * 0.02, 0.0, -0.1]),
        "ball_owned_team": int(turned),
        "ball_owned_player": 1,
        "game_mode": 2,
        f"{own}_agent_controlled_player": [1],
        f"{own}_agent_sticky_actions": [lasting],
        f"{other}_agent_controlled_player": [],
        f"{other}_agent_sticky_actions": [],
        f"{own}_team_tired_factor": np.array([0.0, 0.25]),
        f"{own}_team_yellow_card": np.array([False, True]),
        f"{own}_team_active": np.array([True, True]),
        f"{other}_team_tired_factor": np.array([0.5]),
        f"{other}_team_yellow_card": np.array([False]),
        f"{other}_team_active": np.array([True]),
        "score": [1, 3] if turned else [3, 1],
    }


def test_both_sides_see_the_same_match_from_the_left() -> None:
    left, right = SideView(match(False), left=True), SideView(match(True), left=False)
    np.testing.assert_array_equal(left.simple(0), right.simple(0))
    np.testing.assert_array_equal(left.minimap(0), right.minimap(0))
    np.testing.assert_array_equal(left.own(0, 0.5), right.own(0, 0.5))


def test_the_numbers_stand_where_the_library_has_them() -> None:
    row = SideView(match(False), left=True).simple(0)
    np.testing.assert_allclose(row[:5], [-0.9, 0.0, 0.3, 0.2, -1.0], atol=1e-6)
    np.testing.assert_allclose(row[44:47], [0.8, -0.1, -1.0], atol=1e-6)
    np.testing.assert_allclose(row[88:94], [0.31, 0.21, 0.4, 0.02, 0.0, -0.1], atol=1e-6)
    np.testing.assert_array_equal(row[94:97], [0, 1, 0])
    assert row[97:108].argmax() == 1
    assert row[108:].argmax() == 2


def test_a_critic_sees_what_the_seats_do_not() -> None:
    state = SideView(match(False), left=True).state(0.5)
    assert state.shape == (NUM_STATE,)
    np.testing.assert_array_equal(state, SideView(match(True), left=False).state(0.5))
    np.testing.assert_array_equal(state[:97], SideView(match(False), left=True).simple(0)[:97])
    assert state[97:108].argmax() == 1  # the player with the ball
    own, other = state[115:-2].reshape(2, 11, 14)
    np.testing.assert_allclose(own[1, :4], [0.25, 1.0, 1.0, 1.0])
    assert np.flatnonzero(own[1, 4:]).tolist() == [1, 8]
    np.testing.assert_allclose(other[0, :4], [0.5, 0.0, 1.0, 0.0])
    assert not own[2:].any()
    assert not other[1:].any()
    np.testing.assert_allclose(state[-2:], [2.0, 0.5])  # two goals ahead, half the time left
    behind = SideView(match(False), left=False).state(0.5)
    assert behind[-2] == -2.0
    np.testing.assert_array_equal(behind[115:-2].reshape(2, 11, 14)[1, :, :4], own[:, :4])


def test_the_map_marks_the_players_and_the_ball() -> None:
    planes = SideView(match(False), left=True).minimap(0)
    assert planes.shape == MINIMAP
    assert [int((plane > 0).sum()) for plane in planes] == [2, 1, 1, 1]
    assert picture(SideView(match(False), left=True), 0).shape == (288, 384, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"left": 12}, "left must be 0 to 11 seats, got 12"),
        ({"left": 0}, "at least one player needs a seat"),
        ({"view": "pixels"}, "view must be simple115v2 or extracted, got 'pixels'"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GameError, match=message):
        Football(scenario="5_vs_5", **options)


def test_the_builtin_bot_marks_its_seat() -> None:
    rows = np.arange(3)
    acts = BuiltinBot().act(None, rows, rows, np.random.default_rng(0))
    assert acts["autopilot"].tolist() == [-1, -1, -1]


@needs_game
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("academy_3_vs_1_with_keeper", {"left": 3, "checkpoints": True}),
        ("academy_empty_goal", {"view": "extracted"}),
        ("5_vs_5", {"left": 4, "right": 4, "builtin_bot": True, "critic_state": True, "max_length": 40}),
        ("11_vs_11_stochastic", {"left": 0, "right": 11, "max_length": 20}),
    ],
)
def test_football_keeps_its_promises(scenario: str, options: dict[str, Any]) -> None:
    source = resolve(f"football:{scenario}", **options)
    report = check_game(source, tables=2, episodes=2, max_steps=80)
    assert report.ok, str(report)


@needs_game
@pytest.mark.slow
def test_what_a_seat_sees_and_is_paid_is_what_the_library_gives() -> None:
    script = """
import numpy as np
from gfootball.env import config, football_env, observation_preprocessing, wrappers
from ludus.games.adapters.football import Football, FootballTable

settings = dict(scenario="academy_3_vs_1_with_keeper", left=3, right=1)
views = ("simple115v2", "extracted")
tables = [FootballTable(Football(**settings, checkpoints=True, view=view)) for view in views]
first = [table.reset(6) for table in tables]
theirs = football_env.FootballEnv(config.Config({
    "level": settings["scenario"], "players": ["agent:left_players=3,right_players=1"],
    "game_engine_random_seed": 6, "reverse_team_processing": False, "episode_number": 0,
}))
theirs = wrappers.CheckpointRewardWrapper(theirs)
seen = theirs.reset()
rng, total = np.random.default_rng(0), 0.0
for step in range(150):
    numbers = wrappers.Simple115StateWrapper.convert_observation(seen, True)
    planes = observation_preprocessing.generate_smm(seen)
    for seat in range(4):
        np.testing.assert_allclose(first[0].observations[seat]["pitch"], numbers[seat], atol=1e-6)
        np.testing.assert_array_equal(first[1].observations[seat]["pitch"], planes[seat].transpose(2, 0, 1))
        np.testing.assert_array_equal(first[0].observations[seat]["own"][:10], seen[seat]["sticky_actions"])
    actions = rng.choice([5, 5, 4, 6, 12, 13, 9, 0], 4).tolist()
    seen, reward, done, _ = theirs.step(actions)
    first = [table.step(dict(enumerate(actions))) for table in tables]
    np.testing.assert_allclose([first[0].reward[seat] for seat in range(4)], reward, atol=1e-6)
    total += abs(reward).sum()
    if done:
        break
assert total > 0, total
print("same", step)
"""
    done = subprocess.run(
        [str(PYTHON), "-c", script], capture_output=True, text=True, check=False, env={"PYTHONPATH": "src"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("same")


@needs_game
@pytest.mark.slow
def test_a_scenario_that_is_not_there_and_too_many_seats_are_refused() -> None:
    with pytest.raises(GameError, match="did you mean '5_vs_5'"):
        _ = resolve("football:5_v_5").spec
    with pytest.raises(GameError, match="has 4 players on the left that can be controlled, but left is 5"):
        _ = resolve("football:5_vs_5", left=5).spec


@needs_game
@pytest.mark.slow
def test_the_builtin_player_scores_where_an_idle_one_does_not() -> None:
    source = resolve("football:academy_empty_goal_close", builtin_bot=True)
    scores = {}
    for name in ("builtin", "idle"):
        tables = source.tables(2)
        try:
            which = np.arange(2)
            tables.reset(which, np.array([1, 2], np.uint64))
            actions = allocate_actions(source.spec, 2)
            while not tables.view.over.all():
                if name == "builtin":
                    chosen = source.bots()[name].act(tables, which, which * 0, np.random.default_rng(0))
                    for head, rows in chosen.items():
                        actions[0][head][:, 0] = rows
                tables.step(actions)
            scores[name] = tables.view.score[:, 0].tolist()
        finally:
            tables.close()
    assert scores == {"builtin": [1.0, 1.0], "idle": [0.0, 0.0]}

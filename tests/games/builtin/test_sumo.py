"""Sumo: the rules against a plain simulation of one table, the frames of the seats, and the scripted players."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.games.builtin import sumo
from ludus.games.builtin.sumo import Sumo, SumoTables
from ludus.games.game import allocate_actions

Play = Callable[..., NDArray[np.float32]]
BOTS = Sumo().bots()
Vector2 = tuple[float, float]


def tables_at(place: list[list[Vector2]], velocity: list[list[Vector2]], decisions: int = 200) -> SumoTables:
    """Tables at these places, with these velocities."""
    tables = SumoTables(Sumo(decisions=decisions).spec, len(place))
    everyone = np.arange(len(place))
    tables.reset(everyone, everyone.astype(np.uint64))
    tables._place[:], tables._velocity[:] = place, velocity
    tables._show(everyone)
    return tables


def thrust(tables: SumoTables, own: Vector2, other: Vector2) -> None:
    actions = allocate_actions(tables.spec, tables.num_tables)
    actions[0]["thrust"][:] = [own, other]
    tables.step(actions)


def one_decision(
    place: list[list[float]], velocity: list[list[float]], thrusts: list[Vector2]
) -> tuple[list[list[float]], list[list[float]], list[bool]]:
    """The rules once more, in plain Python."""
    place, velocity = [[*one] for one in place], [[*one] for one in velocity]
    across = [place[1][i] - place[0][i] for i in range(2)]
    far = math.hypot(*across)
    pushes = []
    for seat, sign in ((0, 1.0), (1, -1.0)):
        ahead = [sign * part / far for part in across]
        left = [-ahead[1], ahead[0]]
        long = max(math.hypot(*thrusts[seat]), 1.0)
        pushes.append([4.0 * (thrusts[seat][0] * ahead[i] + thrusts[seat][1] * left[i]) / long for i in range(2)])
    for _ in range(4):
        for seat in range(2):
            for i in range(2):
                velocity[seat][i] += 0.025 * (pushes[seat][i] + 2.5 * place[seat][i] - velocity[seat][i])
                place[seat][i] += 0.025 * velocity[seat][i]
        across = [place[1][i] - place[0][i] for i in range(2)]
        far = math.hypot(*across)
        if far < 0.3:
            normal = [part / far for part in across]
            closing = sum((velocity[0][i] - velocity[1][i]) * normal[i] for i in range(2))
            for seat, sign in ((0, -1.0), (1, 1.0)):
                for i in range(2):
                    place[seat][i] += sign * (0.3 - far) / 2 * normal[i]
                    velocity[seat][i] += sign * max(closing, 0.0) * 0.9 * normal[i]
        out = [math.hypot(*one) > 1.0 for one in place]
        if any(out):
            break
    return place, velocity, out


def test_follows_the_rules_on_random_games() -> None:
    num_tables, rng = 60, np.random.default_rng(1)
    tables = Sumo().tables(num_tables)
    assert isinstance(tables, SumoTables)
    tables.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    met, won = 0, np.zeros(2, np.int64)
    for _ in range(12):
        before = [tables._place.tolist(), tables._velocity.tolist(), tables.view.over.tolist()]
        actions = allocate_actions(tables.spec, num_tables)
        # More of them run at each other than a random player does.
        chosen = np.clip(rng.uniform((-0.3, -1.0), (1.7, 1.0), (num_tables, 2, 2)), -1, 1).astype(np.float32)
        actions[0]["thrust"][:] = chosen
        tables.step(actions)
        for table in np.flatnonzero(~np.array(before[2])).tolist():
            thrusts = [tuple(one) for one in chosen[table].tolist()]
            place, velocity, out = one_decision(before[0][table], before[1][table], thrusts)
            np.testing.assert_allclose(tables._place[table], place, atol=1e-9)
            np.testing.assert_allclose(tables._velocity[table], velocity, atol=1e-9)
            assert tables.view.over[table] == any(out)
            assert tables.view.score[table].tolist() == [float(out[1]) - out[0], float(out[0]) - out[1]]
            met += math.isclose(math.dist(*place), 0.3, abs_tol=1e-9)
            won += [out[1] and not out[0], out[0] and not out[1]]
    assert met > 10
    assert won.min() > 5


def test_momentum_is_kept_when_discs_meet_and_speed_is_lost() -> None:
    place, velocity = np.array([[[-0.14, 0.0], [0.14, 0.02]]]), np.array([[[1.0, 0.5], [-0.5, 0.0]]])
    seconds = sumo.SECONDS / sumo.STEPS
    _, after = sumo._moved(place, velocity, -sumo.SLOPE * place + sumo.DRAG * velocity)  # nothing but the collision
    np.testing.assert_allclose(after.sum(axis=1), velocity.sum(axis=1))
    moved = place + seconds * velocity
    normal = (moved[0, 1] - moved[0, 0]) / math.dist(*moved[0])
    closing, parting = (float((one[0, 0] - one[0, 1]) @ normal) for one in (velocity, after))
    assert closing > 0
    assert parting == pytest.approx(-sumo.BOUNCE * closing)
    assert (after**2).sum() < (velocity**2).sum()


def test_every_seat_sees_the_table_from_where_it_is() -> None:
    turn = 0.7
    turned = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    place, velocity = np.array([[-0.3, 0.1], [0.5, -0.2]]), np.array([[0.4, 0.3], [-0.1, 0.6]])
    pictures = [(place, velocity), (place @ turned.T, velocity @ turned.T), (place[::-1], velocity[::-1])]
    tables = tables_at([one.tolist() for one, _ in pictures], [one.tolist() for _, one in pictures])
    own, other = (tables.view.observation[0][name] for name in ("own", "other"))
    for seen in (own, other):
        np.testing.assert_allclose(seen[1], seen[0], atol=1e-6, err_msg="the platform is round")
        np.testing.assert_allclose(seen[2], seen[0, ::-1], atol=1e-6, err_msg="seats are alike")
    across = place[1] - place[0]
    ahead = across / np.linalg.norm(across)
    left = np.array([-ahead[1], ahead[0]])
    np.testing.assert_allclose(own[0, 0, :2], [-place[0] @ ahead, -place[0] @ left], atol=1e-6)
    np.testing.assert_allclose(own[0, 0, 2:4], [velocity[0] @ ahead, velocity[0] @ left], atol=1e-6)
    assert own[0, 0, 4] == pytest.approx(1 - math.hypot(*place[0]))
    assert other[0, 0, 0] == pytest.approx(np.linalg.norm(across))
    np.testing.assert_allclose(other[0, 0, 1:3], [velocity[1] @ ahead, velocity[1] @ left], atol=1e-6)
    assert other[0, 0, 3] == pytest.approx(1 - math.hypot(*place[1]))


def test_a_longer_thrust_is_no_stronger() -> None:
    still: list[list[Vector2]] = [[(0.0, 0.0), (0.0, 0.0)]]
    ends = []
    for own in ((1.0, 1.0), (math.sqrt(0.5), math.sqrt(0.5)), (0.3, 0.3)):
        tables = tables_at([[(-0.3, 0.0), (0.3, 0.0)]], still)
        thrust(tables, own, (0.0, 0.0))
        ends.append(tables._velocity[0, 0])
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)
    assert np.linalg.norm(ends[2]) < np.linalg.norm(ends[0])


def test_ends() -> None:
    edge, away = 0.99, (-1.0, 0.0)
    tables = tables_at(
        [[(edge, 0.0), (0.0, 0.0)], [(edge, 0.0), (-edge, 0.0)], [(0.3, 0.0), (-0.3, 0.0)]],
        [[(0.0, 0.0), (0.0, 0.0)]] * 3,
        decisions=1,
    )
    thrust(tables, away, away)
    assert tables.view.over.all()
    assert tables.view.score.tolist() == [[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert tables.view.reward.tolist() == tables.view.score.tolist()


def test_starts_differ_and_favour_nobody() -> None:
    tables = SumoTables(Sumo().spec, 4_000)
    tables.reset(np.arange(4_000), np.arange(4_000, dtype=np.uint64))
    far = np.linalg.norm(tables._place, axis=2)
    assert far.min() >= sumo.NEAREST
    assert far.max() <= sumo.FURTHEST
    assert np.linalg.norm(tables._velocity, axis=2).max() <= sumo.FASTEST
    assert np.linalg.norm(tables._place[:, 1] - tables._place[:, 0], axis=1).min() > 2 * sumo.DISC
    np.testing.assert_allclose(far.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(tables._velocity.mean(axis=0), 0.0, atol=0.05)
    assert len(np.unique(tables._place.round(6), axis=0)) == 4_000


@pytest.mark.parametrize(
    ("stronger", "weaker", "least", "most"),
    [("charger", "random", 0.95, 1.0), ("matador", "random", 0.95, 1.0), ("matador", "charger", 0.3, 0.8)],
)
def test_ladder(play: Play, stronger: str, weaker: str, least: float, most: float) -> None:
    """Mean score over both seats. The charger, too, wins a share of its games against the matador."""
    first = play(Sumo(), [BOTS[stronger], BOTS[weaker]], 200)[:, 0]
    second = play(Sumo(), [BOTS[weaker], BOTS[stronger]], 200, 1)[:, 1]
    assert least < np.concatenate([first, second]).mean() <= most


def test_it_is_drawn() -> None:
    tables = tables_at([[(-0.5, 0.0), (0.5, 0.0)]], [[(0.0, 0.0), (0.0, 0.0)]])
    picture = tables.render(0)
    assert picture.shape == (sumo.PICTURE, sumo.PICTURE, 3)
    middle = sumo.PICTURE // 2
    shift = round(0.5 * sumo.PICTURE / sumo.WIDTH)
    colours = [picture[middle, middle + step].tolist() for step in (-shift, 0, shift)]
    assert colours[0] == list(sumo.colour_of_team(0))
    assert colours[2] == list(sumo.colour_of_team(1))
    assert colours[1] not in (colours[0], colours[2], picture[0, 0].tolist())

"""Strategies that seats are shown, and rewards for following them, against plain loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from building_game import FACTS, PLACES, THINGS, Building, BuildingTables

from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.check import check_game
from ludus.games.game import HasPicture, HasStrategy, allocate_actions
from ludus.games.seat_groups import group_seats
from ludus.games.strategies import EditDistances, Strategies, StrategyTables, WithStrategies

SEATS, TABLES = 3, 6
SMITH = 1


def write(path: Path, number: int = 7, seed: int = 0, **changes: object) -> str:
    rng = np.random.default_rng(seed)
    order = rng.integers(0, THINGS, (number, PLACES)).astype(np.int16)
    order[np.arange(PLACES) >= rng.integers(1, PLACES + 1, number)[:, None]] = -1
    order[0, 0] = THINGS - 1  # a file that names all things
    arrays = {"build_order": order, "built": rng.random((number, FACTS)) < 0.5, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return str(path)


@pytest.fixture
def strategies(tmp_path: Path) -> str:
    return write(tmp_path / "strategies.npz")


def with_strategies(strategies: str, timed: bool = True, **changes: object) -> WithStrategies:
    return WithStrategies(game=Building(timed=timed), strategies=strategies, **changes)  # type: ignore[arg-type]


def started(source: WithStrategies, num_tables: int = TABLES, first_seed: int = 0) -> StrategyTables:
    tables = source.tables(num_tables)
    assert isinstance(tables, StrategyTables)
    seeds = np.arange(first_seed, first_seed + num_tables, dtype=np.uint64)
    tables.reset(np.arange(num_tables), seeds)
    return tables


def z_of_seat(tables: StrategyTables, table: int, seat: int) -> tuple[bool, list[int], list[bool]]:
    """What the seat can read off what it is shown."""
    kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
    z = tables.view.observation[kind]["z"][table, column]
    places = z[1 : 1 + PLACES * THINGS].reshape(PLACES, THINGS)
    order = [int(row.argmax()) for row in places if row.any()]
    return bool(z[0]), order, [bool(fact) for fact in z[1 + PLACES * THINGS :]]


def further(tables: StrategyTables, table: int, seat: int) -> list[float]:
    kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
    found: list[float] = tables.view.rewards[kind][table, column, -2:].tolist()
    return found


def play_on(tables: StrategyTables, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Random steps until all tables are over; gives which tables a step was of."""
    while (live := ~tables.view.over).any():
        actions = allocate_actions(tables.spec, tables.num_tables)
        for chosen in actions:
            chosen["build"][:] = rng.integers(0, THINGS + 1, chosen["build"].shape)
        tables.step(actions)
        yield live


def levenshtein(one: Sequence[int], other: Sequence[int]) -> int:
    """By its definition."""

    @cache
    def from_(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return max(len(one) - i, len(other) - j)
        if one[i] == other[j]:
            return from_(i + 1, j + 1)
        return 1 + min(from_(i + 1, j), from_(i, j + 1), from_(i + 1, j + 1))

    return from_(0, 0)


def distances(tables: StrategyTables, table: int, seat: int) -> list[float]:
    _, goal, facts = z_of_seat(tables, table, seat)
    order = [int(item) for item in tables.strategy.build_order[table, seat] if item >= 0]
    built = tables.strategy.built[table, seat].tolist()
    wrong = sum(one != other for one, other in zip(built, facts, strict=True))
    return [levenshtein(order, goal[: len(order)]) / PLACES, wrong / FACTS]


@pytest.mark.parametrize("seed", range(20))
def test_edit_distances_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    goals = rng.integers(0, 3, (4, 2, 8)).astype(np.int16)
    goals[np.arange(8) >= rng.integers(0, 9, (4, 2, 1))] = -1
    found = EditDistances((4, 2), 8)
    found.begin(np.arange(4), goals)
    sequences = np.full((4, 2, 8), -1, np.int16)
    for _ in range(6):
        for place in np.ndindex(4, 2):
            length = int((sequences[place] >= 0).sum())
            more = rng.integers(0, 3, min(int(rng.integers(0, 3)), 8 - length))
            sequences[place][length : length + len(more)] = more
        known = found.of(sequences)
        for place in np.ndindex(4, 2):
            one, goal = ([int(item) for item in row[place] if item >= 0] for row in (sequences, goals))
            assert known[place] == levenshtein(one, goal[: len(one)])


@pytest.mark.parametrize("timed", [True, False])
def test_rewards_are_what_a_seat_came_nearer_to_its_strategy(strategies: str, timed: bool) -> None:
    fade = (4, 8, 12) if timed else (2, 4, 6)
    source = with_strategies(strategies, timed, shown=1.0, active=1.0, scale=3.0, fade=fade)
    tables, rng = started(source), np.random.default_rng(3)
    totals = np.zeros(2)
    for _ in range(3):
        before = {at: distances(tables, *at) for at in np.ndindex(TABLES, SEATS)}
        passed = np.zeros(TABLES, int)
        assert all(further(tables, *at) == [0.0, 0.0] for at in before)
        for live in play_on(tables, rng):
            passed += 2 * live
            for table, seat in np.ndindex(TABLES, SEATS):
                if live[table]:
                    after = distances(tables, table, seat)
                    clock = passed[table]
                    factor = 3.0 * (1 if clock < 4 else 0.5 if clock < 8 else 0.25 if clock < 12 else 0)
                    change = np.subtract(before[table, seat], after)
                    np.testing.assert_allclose(further(tables, table, seat), factor * change, atol=1e-6)
                    before[table, seat] = after
                    totals += np.abs(factor * change)
        tables.reset(np.arange(TABLES), rng.integers(0, 2**60, TABLES).astype(np.uint64))
    assert (totals > 1).all()


def test_the_games_own_further_rewards_come_first(strategies: str) -> None:
    source = with_strategies(strategies)
    assert [kind.rewards for kind in source.spec.kinds] == [("build_order", "built"), ("iron", "build_order", "built")]
    tables = started(source)
    iron = 0.0
    for _ in play_on(tables, np.random.default_rng(0)):
        np.testing.assert_array_equal(tables.view.rewards[SMITH][..., :1], tables.game.view.rewards[SMITH])
        iron += tables.view.rewards[SMITH][..., 0].sum()
    assert iron > 0


def test_strategies_are_drawn_as_often_as_they_should_be(strategies: str) -> None:
    tables = started(with_strategies(strategies, shown=0.7, active=0.25), num_tables=1000)
    known = Strategies.read(strategies)
    rows = [z_of_seat(tables, *at) for at in np.ndindex(1000, SEATS)]
    shown = [row for row in rows if row[0]]
    assert len(shown) / len(rows) == pytest.approx(0.7, abs=0.03)
    assert all(not order and not any(facts) for is_shown, order, facts in rows if not is_shown)
    counts = []
    for order, facts in zip(known.build_order, known.built, strict=True):
        one = ([int(item) for item in order if item >= 0], facts.tolist())
        counts.append(sum((row[1], row[2]) == one for row in shown))
    assert sum(counts) == len(shown)
    assert min(counts) > 0.8 * len(shown) / len(known)
    assert sum(rows[3 * table] != rows[3 * table + 2] for table in range(1000)) > 500, "seats differ"

    earned = np.zeros((1000, SEATS, 2), bool)
    for _ in play_on(tables, np.random.default_rng(0)):
        for kind, seats in enumerate(tables.spec.seats_of_kind):
            earned[:, seats] |= tables.view.rewards[kind][..., -2:] != 0
    was_shown = np.array([row[0] for row in rows]).reshape(1000, SEATS)
    assert not earned[~was_shown].any()
    for reward in range(2):
        assert 0.15 < earned[was_shown][:, reward].mean() < 0.28
    both = earned[was_shown].all(-1).mean()
    assert both == pytest.approx(0.25 * 0.25, abs=0.03), "one does not depend on the other"


def test_a_strategy_can_be_fixed(strategies: str) -> None:
    tables = started(with_strategies(strategies, shown=0.0, fixed=3))
    known = Strategies.read(strategies)
    order = [int(item) for item in known.build_order[3] if item >= 0]
    for at in np.ndindex(TABLES, SEATS):
        assert z_of_seat(tables, *at) == (True, order, known.built[3].tolist())


def test_a_strategy_can_be_hidden_where_players_are_measured(strategies: str) -> None:
    source = with_strategies(strategies, shown=1.0, active=1.0)
    tables = started(source.without())
    assert tables.spec == source.spec, "the same networks play it"
    for _ in play_on(tables, np.random.default_rng(0)):
        assert not any(z_of_seat(tables, *at)[0] for at in np.ndindex(TABLES, SEATS))
        assert not any(rewards[..., -2:].any() for rewards in tables.view.rewards)
    fixed = with_strategies(strategies, fixed=3)
    assert fixed.without() == fixed, "asked for, to see how a player follows it"


def test_strategies_of_skirmish_come_with_ludus() -> None:
    source = WithStrategies(game=Skirmish(), strategies="skirmish", types=5)
    assert len(source.known) > 900
    assert len(np.unique(source.known.build_order, axis=0)) > 5, "the five bots, and what they had to change"
    source.tables(1)  # refuses strategies that do not fit the game


def test_the_game_itself_stays_as_it_is(strategies: str) -> None:
    tables, plain = started(with_strategies(strategies)), Building().tables(TABLES)
    plain.reset(np.arange(TABLES), np.arange(TABLES, dtype=np.uint64))
    for _ in play_on(tables, np.random.default_rng(0)):
        pass
    actions = np.random.default_rng(0)
    while not plain.view.over.all():
        chosen = allocate_actions(plain.spec, TABLES)
        for one in chosen:
            one["build"][:] = actions.integers(0, THINGS + 1, one["build"].shape)
        plain.step(chosen)
    np.testing.assert_array_equal(tables.view.score, plain.view.score)
    np.testing.assert_array_equal(tables.view.clock, plain.view.clock)


@pytest.mark.parametrize("policies", ["shared", "per_seat"])
def test_it_keeps_the_promises_of_a_game(strategies: str, policies: str) -> None:
    source = group_seats(with_strategies(strategies, active=1.0, fade=(4, 6, 8)), policies)  # type: ignore[arg-type]
    report = check_game(source, episodes=24, bot_seconds=0.5)
    assert report.ok, str(report)


def test_tables_show_what_was_built_and_pictures_only_if_the_game_does(strategies: str) -> None:
    tables = started(with_strategies(strategies))
    assert isinstance(tables, HasStrategy)
    assert not isinstance(tables, HasPicture)
    BuildingTables.render = lambda self, table, seat=None: np.zeros((1, 1, 3), np.uint8)  # type: ignore[attr-defined]
    try:
        drawn = started(with_strategies(strategies))
        assert isinstance(drawn, HasPicture)
        assert drawn.render(0, None).shape == (1, 1, 3)
    finally:
        del BuildingTables.render  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shown": 1.5}, r"shown must be from 0 to 1, got 1.5"),
        ({"active": -0.1}, r"active must be from 0 to 1"),
        ({"fade": (3, 2, 9)}, r"fade must be times in order"),
        ({"types": 2}, r"types must be above 2, .*got 2"),
        ({"fixed": 7}, r"fixed must be from 0 to 6.*got 7"),
        ({"strategies": "nowhere.npz"}, r"no file 'nowhere.npz'.*ludus convert"),
    ],
)
def test_wrong_settings_are_named(strategies: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(with_strategies(**{"strategies": strategies, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"built": None}, r"has no array 'built'"),
        ({"built": np.zeros((7, FACTS))}, r"'built' of .* must be bool .*float64 \[7, 4\]"),
        ({"build_order": np.zeros((0, PLACES), np.int16)}, r"'build_order' of .* \[0, 5\]"),
        ({"build_order": np.full((7, PLACES), 70_000)}, r"numbers from 0 to 32767"),
        ({"build_order": np.full((7, PLACES), -2)}, r"numbers from 0 to 32767"),
        ({"build_order": np.array([[1, -1, 2, -1, -1]] * 7)}, r"-1 from the end of an order on"),
        ({"built": np.zeros((3, FACTS), bool)}, r"different numbers of episodes"),
        ({"built": np.zeros((7, 3), bool)}, r"'built' of building has 4 entries, but 3 in"),
        ({"built": np.array([[None]])}, r"not an .npz file of strategies"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        started(with_strategies(write(tmp_path / "other.npz", **changes)))  # type: ignore[arg-type]


def test_a_damaged_file_is_refused(strategies: str) -> None:
    whole = Path(strategies).read_bytes()
    np.save(strategies, np.zeros(3))
    Path(strategies + ".npy").replace(strategies)
    with pytest.raises(ValueError, match=r"not an \.npz file of strategies"):
        Strategies.read(strategies)
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        Path(strategies).write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"not an \.npz file of strategies"):
            Strategies.read(strategies)


def test_a_game_in_which_nothing_is_built_is_refused(strategies: str) -> None:
    with pytest.raises(ValueError, match="nothing is built in kuhn"):
        WithStrategies(game=Kuhn(), strategies=strategies).tables(2)


def test_groups_of_facts_have_rewards_of_their_own(strategies: str) -> None:
    source = with_strategies(strategies, shown=1.0, active=1.0, groups={"arms": 3, "walls": 1})
    assert source.spec.kinds[0].rewards == ("build_order", "arms", "walls")
    tables, rng = started(source), np.random.default_rng(3)
    seat, kind, column = 1, SMITH, 0

    def wrong(table: int) -> list[float]:
        facts = z_of_seat(tables, table, seat)[2]
        differ = [one != other for one, other in zip(tables.strategy.built[table, seat], facts, strict=True)]
        return [sum(differ[:3]) / 3, float(differ[3])]

    before = [wrong(table) for table in range(TABLES)]
    total = 0.0
    for live in play_on(tables, rng):
        for table in np.flatnonzero(live):
            after = wrong(table)
            found = tables.view.rewards[kind][table, column, -2:]
            np.testing.assert_allclose(found, np.subtract(before[table], after), atol=1e-6)
            before[table], total = after, total + float(np.abs(found).sum())
    assert total > 1
    with pytest.raises(ValueError, match=r"groups must have 4 facts in all, as many as .*, got 5"):
        with_strategies(strategies, groups={"arms": 5}).spec  # noqa: B018


def test_each_of_many_rewards_is_active_by_itself(strategies: str) -> None:
    source = with_strategies(strategies, shown=1.0, active=0.25, groups=dict.fromkeys("abcd", 1))
    tables = started(source, num_tables=1000)
    active = tables._active.reshape(-1, 5)
    assert (np.abs(active.mean(0) - 0.25) < 0.03).all()
    together = np.corrcoef(active.T) - np.eye(5)
    assert np.abs(together).max() < 0.08


def test_a_strategy_may_be_shown_in_parts(tmp_path: Path) -> None:
    order = np.array([[2, 0, -1, -1, -1], [1, 1, 2, 0, 1]], np.int16)
    where = np.array([[130, 5, -1, -1, -1], [-1, 0, 1, 2, 3]], np.int16)
    path = write(tmp_path / "z.npz", 2, build_order=order, build_place=where)
    source = with_strategies(path, separate=True, groups={"arms": 3, "walls": 1})
    parts = source.spec.kinds[0].observation.parts
    assert [*parts] == ["built", "z", "z_build_order", "z_arms", "z_walls"]
    known = Strategies.read(path)
    shown = source.features(known, np.array([True, False]))
    assert all(not array[1].any() for array in shown.values())
    assert shown["z"][0].tolist() == [1.0]
    assert shown["z_build_order_length"].tolist() == [2, 0]
    half = 0.5 / 128
    expected = [[2, 2 / 128 + half, 1 / 128 + half, 0], [0, 5 / 128 + half, half, 1]]
    np.testing.assert_allclose(shown["z_build_order"][0, :2], expected)
    assert not shown["z_build_order"][0, 2:].any()
    np.testing.assert_array_equal(shown["z_arms"][0], known.built[0, :3])
    arrays = source.spec.kinds[0].observation.arrays
    for name, array in shown.items():
        assert (array.shape[1:], array.dtype) == (arrays[name].shape, arrays[name].dtype), name
    with pytest.raises(ValueError, match="has places, which building does not report"):
        source.tables(1)
    report = check_game(with_strategies(write(tmp_path / "plain.npz"), separate=True), episodes=6, tables=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(5))
def test_a_thing_in_another_place_costs_up_to_four_fifths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    goal, built = (rng.integers(0, 2, 6).astype(np.int16) for _ in range(2))
    goal_at, built_at = (rng.integers(0, 8, 6) * 128 + rng.integers(0, 8, 6) for _ in range(2))
    goal_at[0] = -1  # anywhere

    @cache
    def least(i: int, j: int) -> float:
        if not i or not j:
            return float(i + j)
        cost = float(built[i - 1] != goal[j - 1])
        if not cost and goal_at[j - 1] >= 0:
            apart = np.subtract(divmod(int(built_at[i - 1]), 128), divmod(int(goal_at[j - 1]), 128))
            cost = 0.8 * min(1.0, float((apart**2).sum()) / 5.0**2)
        return min(least(i - 1, j) + 1, least(i, j - 1) + 1, least(i - 1, j - 1) + cost)

    found = EditDistances((1,), 6, reach=5.0)
    found.begin(np.arange(1), goal[None], goal_at.astype(np.int16)[None])
    for length in range(1, 7):
        sequence = np.where(np.arange(6) < length, built, -1).astype(np.int16)
        assert found.of(sequence[None], built_at.astype(np.int16)[None])[0] == pytest.approx(least(length, length))

"""Actions of real numbers, alone and after a choice: at tables, in other processes, of programs and in replays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiming_game import HIGH, LOW, SHOOT, WAIT, Aiming, Guessing
from numpy.typing import NDArray

from ludus.data.replay import EpisodeFilter, Packed, Replay, ReplayError, SeatPlayer, decode_replay, encode_replay
from ludus.data.specs import ActionSpec, Box, GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot, Rows, act_among, draw_within, first_illegal, require_within_bounds
from ludus.games.builtin.sumo import Sumo
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import Actions, GameBatch, GameSource, allocate_actions, lost_tables
from ludus.games.isolation.isolated import Isolated
from ludus.games.lift import BatchSource, Lifted
from ludus.games.network_search import require_searchable
from ludus.games.outside_bots import ProgramBot, WithBots
from ludus.games.program import CountedTables, ProgramLost
from ludus.games.recording import Recording, record_innermost
from ludus.games.seat_rows import GameError
from ludus.games.tables import ArrayTables, Table
from ludus.replays.conversion import ReplayEpisodes, convert
from ludus.replays.dataset import ReplayDataset
from ludus.replays.dataset_writer import write_dataset
from ludus.replays.playback import PlaybackError, require_same_game

HERE = Path(__file__).parent
AIMING = f"{HERE / 'aiming_game.py'}:Aiming"
SOURCES: dict[str, GameSource] = {"guessing": Lifted(Guessing), "aiming": Lifted(Aiming), "sumo": Sumo(decisions=40)}
WRONG = (math.nan, math.inf, -math.inf, 5.0)


def started(source: GameSource, num_tables: int) -> GameBatch:
    tables = source.tables(num_tables)
    tables.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    return tables


def random_actions(tables: GameBatch, seed: int = 0) -> Actions:
    actions = allocate_actions(tables.spec, tables.num_tables)
    act_among(RandomBot(), tables, np.ones((1, 1), np.bool_), np.random.default_rng(seed), actions)
    return actions


# --- at tables ---


@pytest.mark.parametrize("name", SOURCES)
def test_games_of_real_numbers_keep_their_promises(name: str) -> None:
    report = check_game(SOURCES[name], episodes=16, bot_seconds=0.5)
    assert report.ok, str(report)
    [bounds] = [verdict for verdict in report.verdicts if verdict.promise == "bounds"]
    assert bounds.times == 2


def test_random_numbers_fill_the_bounds_and_are_zero_where_they_do_not_count() -> None:
    tables = started(SOURCES["aiming"], 2_000)
    tree = random_actions(tables)[0]
    assert tree["aim"].dtype == np.float32
    shots = tree["order"][:, 0] == SHOOT
    assert 800 < shots.sum() < 1_200
    assert not tree["aim"][~shots].any()
    aims = tree["aim"][shots, 0]
    np.testing.assert_allclose(aims.min(axis=0), LOW, atol=0.05)
    np.testing.assert_allclose(aims.max(axis=0), HIGH, atol=0.05)
    np.testing.assert_allclose(aims.mean(axis=0), (np.array(LOW) + HIGH) / 2, atol=0.15)
    assert first_illegal(Rows.of(tables, np.arange(2_000), np.zeros(2_000, np.int64)), take_all(tree)) is None


def take_all(tree: Tree) -> Tree:
    return {name: array[:, 0] for name, array in tree.items()}


def test_draws_reach_wide_bounds_and_never_pass_them() -> None:
    widest = float(np.finfo(np.float32).max) / 2  # on either side of 0, since the distance of bounds is a float32
    for box in (
        Box(size=3, low=-widest, high=widest),
        Box(size=3, low=0.1, high=np.nextafter(np.float32(0.1), 1).item()),
    ):
        drawn = draw_within(box, 1_000, np.random.default_rng(0))
        assert not box.outside(drawn).any()
        assert len(np.unique(drawn)) > 1


def test_a_bound_that_is_no_float32_is_within_the_bounds() -> None:
    box = Box(size=2, low=LOW, high=HIGH)
    assert not box.outside(np.array([LOW, HIGH], np.float32)).any()
    beyond = np.nextafter(np.array(HIGH, np.float32), np.float32(9))
    assert box.outside(beyond).all()
    assert box.outside(np.array([0.3, np.nan])).tolist() == [False, True]
    with pytest.raises(ValueError, match=r"Box\.high must be one finite number"):
        Box(size=1, high=1e39)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_number_beyond_its_bounds_is_refused_by_name(name: str, wrong: float) -> None:
    tables = started(SOURCES[name], 3)
    seat = tables.spec.num_seats - 1
    actions = random_actions(tables)
    head, box = next(iter(tables.spec.kinds[0].action.boxes.items()))
    actions[0].get("order", np.zeros((3, 1)))[:] = SHOOT
    actions[0][head][:] = np.array(box.bounds).mean(axis=0)
    actions[0][head][1, seat, box.size - 1] = wrong
    said = f"table 1, seat {seat}: head '{head}' is {wrong:g} at number {box.size - 1}, but its bounds are "
    with pytest.raises(ValueError, match=said):
        tables.step(actions)


def test_numbers_that_do_not_count_may_be_anything() -> None:
    tables = started(SOURCES["aiming"], 2)
    actions = random_actions(tables)
    actions[0]["order"][:] = WAIT
    actions[0]["aim"][:] = math.nan
    tables.step(actions)
    idle = started(SOURCES["guessing"], 2)
    actions = random_actions(idle)
    actions[0]["guess"][1] = math.nan
    require_within_bounds(idle.spec, np.array([[True, True], [False, False]]), actions)
    with pytest.raises(ValueError, match="table 1, seat 0"):
        require_within_bounds(idle.spec, np.array([[True, True], [True, False]]), actions)


def test_one_table_takes_arrays() -> None:
    with Table(SOURCES["guessing"]) as table:
        table.reset(0)
        with pytest.raises(ValueError, match=r"seat 0: head 'guess' takes float32\[1\], got 0.5"):
            table.step({0: 0.5, 1: np.zeros(1)})
        turn = table.step({0: np.array([0.5]), 1: [-0.5]})
        assert sorted(map(abs, turn.reward)) == [1.0, 1.0]  # type: ignore[arg-type]
    with Table(SOURCES["aiming"]) as table:
        turn = table.reset(0)
        assert turn.legal[0]["order"].all()  # type: ignore[index]
        turn = table.step({0: {"order": SHOOT, "aim": turn.observations[0]}})
        assert turn.reward == [0.0]


class Careless(ArrayTables):
    """Adds up whatever it is given."""

    spec = GameSpec.symmetric(
        name="careless",
        num_seats=1,
        observation=ObservationSpec(parts={"sum": Vector(size=1)}),
        action=ActionSpec(heads={"add": Box(size=1, low=-1.0, high=0.5)}),
        max_length=4,
        zero_sum=False,
    )

    def __init__(self, num_tables: int) -> None:
        super().__init__(self.spec, num_tables)
        self._steps = np.zeros(num_tables, np.int64)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._steps[tables] = 0
        self.view.observation[0]["sum"][tables] = 0

    def step(self, actions: Actions) -> None:
        acting = self.view.to_act[:, 0]
        self._steps += acting
        self.view.observation[0]["sum"][acting] += actions[0]["add"][acting]
        self.view.truncated[:] = self._steps == 4
        self.view.to_act[:, 0] = ~self.view.truncated


class Anonymous(Careless):
    def step(self, actions: Actions) -> None:
        if not (actions[0]["add"][self.view.to_act[:, 0]] <= 0.5).all():
            raise ValueError("too much")
        super().step(actions)


class Timid(Careless):
    def step(self, actions: Actions) -> None:
        self._require_within_bounds(actions)
        if (actions[0]["add"][self.view.to_act[:, 0]] == 0.5).any():
            raise ValueError("add is at its bound")
        super().step(actions)


@pytest.mark.parametrize(
    ("factory", "promise", "seen"),
    [
        (Careless, "bounds", r"head 'add' was (2|nan) at number 0, but its bounds are -1 to 0.5; the game played it"),
        (Anonymous, "bounds", r"the game said 'too much', without the name of the head"),
        (Timid, "calls", r"add is at its bound"),
    ],
)
def test_a_game_that_does_not_refuse_numbers_is_named(factory: Any, promise: str, seen: str) -> None:
    report = check_game(BatchSource(factory), episodes=4)
    failures = [str(failure) for failure in report.failures]
    assert any(line.startswith(promise) and re.search(seen, line) for line in failures), failures


@dataclass(frozen=True)
class Steady:
    value: Any

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        return {"guess": np.full((len(tables), *np.shape(self.value)), self.value)}


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ([2.0], r"head 'guess' is 2 at number 0, but its bounds are -1 to 1"),
        ([math.nan], r"head 'guess' is nan at number 0"),
        (0.5, r"head 'guess' is float64\[8\], expected float32\[8, 1\]"),
        ([1], r"head 'guess' is int64\[8, 1\], expected float32\[8, 1\]"),
    ],
)
def test_a_bot_that_answers_wrong_numbers_is_named(value: Any, seen: str) -> None:
    report = check_game(replace(Lifted(Guessing), extra_bots={"steady": Steady(value)}), episodes=4)
    [failure] = report.failures
    assert failure.promise == "bots"
    assert re.search(seen, failure.seen), failure.seen


def test_a_search_needs_moves_to_count() -> None:
    with pytest.raises(GameError, match="head 'thrust' of its 'player' seats takes real numbers"):
        require_searchable(Sumo())


# --- elsewhere ---


def play_beside(one: GameBatch, other: GameBatch, steps: int) -> None:
    for step in range(steps):
        ended = np.flatnonzero(one.view.over | one.view.truncated)
        for batch in (one, other):
            batch.reset(ended, ended.astype(np.uint64) + np.uint64(step))
        actions = random_actions(one, step)
        for batch in (one, other):
            batch.step(actions)
        for name, array in one.view.named().items():
            np.testing.assert_array_equal(other.view.named()[name], array, err_msg=name)


@pytest.mark.parametrize("address", ["sumo", AIMING])
def test_a_process_of_its_own_takes_real_numbers(address: str) -> None:
    here, there = resolve(address).tables(3), Isolated(address, processes=2).tables(3)
    try:
        for batch in (here, there):
            batch.reset(np.arange(3), np.arange(3, dtype=np.uint64))
        play_beside(here, there, 20)
        actions = random_actions(here)
        head = next(iter(here.spec.kinds[0].action.boxes))
        actions[0].get("order", np.zeros((3, 1)))[:] = SHOOT
        actions[0][head][:] = math.nan
        with pytest.raises(ValueError, match=f"head '{head}' is nan at number 0"):
            there.step(actions)
        assert not lost_tables(there)
    finally:
        there.close()


def test_bots_act_in_the_process_of_the_game() -> None:
    source = Isolated("sumo")
    there, here = source.tables(2), Sumo().tables(2)
    try:
        for batch in (here, there):
            batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
        rows = np.array([0, 1]), np.array([1, 0])
        chosen = source.bots()["matador"].act(there, *rows, np.random.default_rng(0))
        expected = Sumo().bots()["matador"].act(here, *rows, np.random.default_rng(0))
        assert chosen["thrust"].dtype == np.float32
        np.testing.assert_array_equal(chosen["thrust"], expected["thrust"])
    finally:
        there.close()


# --- programs ---

PROGRAM = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["type"] == "hello":
        heads = asked["game"]["kinds"][0]["action"]
        print(json.dumps({"protocol": 1}), flush=True)
        continue
    assert all("aim" not in row["legal"] for row in asked["rows"])
    print(json.dumps({"id": asked["id"], "actions": [ACTION for row in asked["rows"]]}), flush=True)
"""


def program(folder: Path, action: str) -> ProgramBot:
    path = folder / "bot.py"
    path.write_text(PROGRAM.replace("ACTION", action))
    return ProgramBot("bot", ["python3", str(path)])


def test_a_program_answers_lists_of_numbers(tmp_path: Path) -> None:
    bot = program(tmp_path, '{"order": 1, "aim": row["observation"]["target"]}')
    tables = started(SOURCES["aiming"], 3)
    try:
        chosen = bot.act(tables, np.arange(3), np.zeros(3, np.int64), np.random.default_rng(0))
        np.testing.assert_array_equal(chosen["aim"], tables.view.observation[0]["target"][:, 0])
        assert chosen["order"].tolist() == [SHOOT] * 3
    finally:
        bot.close()


def test_a_program_may_answer_a_bare_list_and_integers(tmp_path: Path) -> None:
    bot = program(tmp_path, "[1]")
    tables = started(SOURCES["guessing"], 2)
    try:
        chosen = bot.act(tables, np.arange(2), np.zeros(2, np.int64), np.random.default_rng(0))
        assert chosen["guess"].tolist() == [[1.0], [1.0]]
        assert chosen["guess"].dtype == np.float32
    finally:
        bot.close()


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ('{"order": 1, "aim": [0.5, 7]}', "head 'aim' is 7 at number 1, but its bounds are -2 to 3"),
        ('{"order": 1, "aim": [0.5]}', "answered .* for head 'aim', which takes a list of 2 numbers"),
        ('{"order": 1, "aim": 0.5}', "which takes a list of 2 numbers"),
        ('{"order": 1, "aim": [0.5, True]}', "which takes a list of 2 numbers"),
        ('{"order": 1, "aim": [0.5, 10**400]}', "which is no JSON|which takes a list of 2 numbers"),
        ('{"order": 1, "aim": [0.5, float("nan")]}', "which is no JSON"),
    ],
)
def test_what_a_program_may_not_answer(tmp_path: Path, action: str, said: str) -> None:
    bot = program(tmp_path, action)
    with pytest.raises(ProgramLost, match=said):
        bot.act(started(SOURCES["aiming"], 1), np.array([0]), np.array([0]), np.random.default_rng(0))
    tables = CountedTables(SOURCES["aiming"].tables(1))
    tables.reset(np.array([0]), np.array([0], np.uint64))
    chosen = bot.act(tables, np.array([0]), np.array([0]), np.random.default_rng(0))
    assert 0 in tables.lost
    assert first_illegal(Rows.of(tables, np.array([0]), np.array([0])), chosen) is None
    bot.close()


def test_the_check_plays_a_program(tmp_path: Path) -> None:
    path = tmp_path / "bot.py"
    path.write_text(PROGRAM.replace("ACTION", '{"order": 1, "aim": [0.7, -2]}'))
    report = check_game(WithBots(SOURCES["aiming"], {"p": f"program:{path}"}), episodes=4, bot_seconds=0.5)
    assert report.ok, str(report)


# --- replays ---


def recorded(source: GameSource, tables: int = 3) -> tuple[list[Replay], list[list[Tree]]]:
    """A replay for each table, and per table what was played in each step: the heads of all seats."""
    ended: dict[int, Recording] = {}
    batch = started(record_innermost(source, lambda one: ended.setdefault(one.table, one) and None), tables)
    played: list[list[Tree]] = [[] for _ in range(tables)]
    step = 0
    while batch.view.to_act.any():
        actions = random_actions(batch, step)
        for table in np.flatnonzero(batch.view.to_act.any(axis=1)).tolist():
            played[table].append({name: array[table].copy() for name, array in actions[0].items()})
        batch.step(actions)
        step += 1
    facts = {"game": "x", "options": {}, "version": "1", "map_name": "x", "teams": source.spec.teams}
    seats = tuple(SeatPlayer(f"player{team}") for team in source.spec.teams)
    return [ended[table].replay(seats=seats, **facts) for table in range(tables)], played


def episodes_of(folder: Path, source: GameSource, replays: list[Replay]) -> ReplayEpisodes:
    files = {}
    for number, replay in enumerate(replays):
        files[str(number)] = folder / f"{number}.replay"
        files[str(number)].write_bytes(encode_replay(replay))
    return ReplayEpisodes(files, lambda _: source, game="x", source=source)


@pytest.mark.parametrize("name", SOURCES)
def test_a_dataset_holds_the_numbers_that_were_played(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    replays, played = recorded(source)
    episodes = episodes_of(tmp_path, source, replays)
    folder = tmp_path / "data"
    with write_dataset(folder, game="x", kind=source.spec.kinds[0], strategy=None, settings={}) as writer:
        convert(episodes, writer, EpisodeFilter())
    dataset = ReplayDataset.open(folder)
    assert dataset.damaged() == []
    decoded = [one for found in episodes.decode(episodes.replays(), EpisodeFilter()) for one in found.episodes]
    assert len(decoded) == len(replays) * source.spec.num_seats
    for one in decoded:
        for head, spec in source.spec.kinds[0].action.arrays.items():
            column = one.columns[f"action.{head}"]
            assert column.dtype == spec.dtype
            expected = np.stack([step[head][one.facts.seat] for step in played[int(one.facts.replay)]])
            np.testing.assert_array_equal(column[: one.num_decisions], expected)
    longest = max(one.num_decisions for one in decoded)
    batch = dataset.read_at(np.arange(len(decoded)), np.zeros(len(decoded), np.int64), longest).batch()
    for column, one in enumerate(decoded):
        for head in source.spec.kinds[0].action.heads:
            written = batch.action[head][: one.num_decisions, column]
            np.testing.assert_array_equal(written, one.columns[f"action.{head}"][: one.num_decisions])


def spoiled(replay: Replay, head: str, change: Callable[[Any], Any]) -> Replay:
    array = replay.action[0][head].array().copy()
    heads = {**replay.action[0], head: Packed.of(change(array))}
    return msgspec.structs.replace(replay, action=(heads,))


def all_of(value: float) -> Callable[[Any], Any]:
    return lambda array: np.full_like(array, value)


@pytest.mark.parametrize(
    ("head", "change", "said"),
    [
        ("aim", all_of(9.0), "decision 0: head 'aim' is 9 at number 0, but its bounds are 0.1 to 0.7"),
        ("aim", all_of(math.nan), "decision 0: head 'aim' is nan at number 0"),
        ("aim", lambda array: array.astype(np.int32), "head 'aim' has actions of u?int8"),
        ("aim", lambda array: array[:, :1], "head 'aim' has actions of shape"),
        ("order", lambda array: array.astype(np.float32), "head 'order' has actions of float32"),
    ],
)
def test_numbers_of_a_replay_are_checked(head: str, change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    source = SOURCES["aiming"]
    [replay], _ = recorded(source, tables=1)
    replay = spoiled(replay, "order", all_of(SHOOT)) if head == "aim" else replay
    broken = spoiled(replay, head, change)
    with pytest.raises(PlaybackError, match=said):
        require_same_game(source.spec, broken)
    [found] = episodes_of(tmp_path, source, [broken]).decode(["0"], EpisodeFilter())
    assert re.search(said, found.skipped)


def test_steps_and_seats_of_a_replay_are_whole_numbers() -> None:
    [replay], _ = recorded(SOURCES["guessing"], tables=1)
    assert decode_replay(encode_replay(replay)) == replay
    for name in ("step", "seat"):
        packed = Packed.of(np.full_like(getattr(replay, name).array(), np.nan, np.float32))
        with pytest.raises(ReplayError, match="its decisions make no sense"):
            decode_replay(encode_replay(msgspec.structs.replace(replay, **{name: packed})))

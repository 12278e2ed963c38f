"""Replays: recorded at the tables, played again elsewhere, with the same observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from building_game import Building
from numpy.typing import NDArray

from ludus.data.replay import (
    DecodedReplay,
    EpisodeFilter,
    NoOp,
    Packed,
    Replay,
    SeatPlayer,
    column_specs,
    encode_replay,
    kept_decisions,
)
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, Tree, put
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.game import Actions, Bot, GameBatch, GameSource, HasStrategy, TableView, allocate_actions
from ludus.games.recording import Recording, game_version, innermost, map_name, record_innermost
from ludus.games.seat_groups import group_seats
from ludus.replays.conversion import ReplayEpisodes
from ludus.replays.playback import PlaybackError
from ludus.replays.replay_games import require_replayable

SOURCES: Mapping[str, GameSource] = {
    "kuhn": Kuhn(),
    "connect_four": ConnectFour(),
    "siege": Siege(),
    "beacon": Beacon(decisions=20),
    "skirmish": Skirmish(),
    "building": Building(),
}
TABLES = 2


def play(source: GameSource, seed: int = 0, tables: int = TABLES) -> tuple[list[Replay], list[dict[int, list[Tree]]]]:
    """One episode a table with random players: the replays, and per table and seat what was seen and done."""
    ended: dict[int, Recording] = {}
    recorded = record_innermost(source, lambda recording: ended.setdefault(recording.table, recording) and None)
    game, bot = recorded.tables(tables), source.bots()["random"]
    rng = np.random.default_rng(seed)
    game.reset(np.arange(tables), np.arange(seed, seed + tables, dtype=np.uint64))
    spec, view = game.spec, game.view
    seen: list[dict[int, list[Tree]]] = [{seat: [] for seat in range(spec.num_seats)} for _ in range(tables)]
    actions = allocate_actions(spec, tables)
    while view.to_act.any():
        for kind, seats in enumerate(spec.seats_of_kind):
            at, columns = np.nonzero(view.to_act[:, list(seats)])
            if len(at):
                put(actions[kind], (at, columns), bot.act(game, at, np.array(seats)[columns], rng))
        for table, seat in np.argwhere(view.to_act).tolist():
            seen[table][seat].append(row_of(spec, view, actions, table, seat))
        running = [table for table in range(tables) if table not in ended]
        game.step(actions)
        for table in running:
            for seat, rows in seen[table].items():
                if rows:
                    kind, column = spec.seats[seat], spec.column_of_seat[seat]
                    rows[-1]["reward"] += view.reward[table, seat]
                    rows[-1]["rewards"] += view.rewards[kind][table, column]
                    rows[-1]["until"][...] = view.clock[table]
    return [as_replay(source, ended[table]) for table in range(tables)], seen


def row_of(spec: GameSpec, view: TableView, actions: Actions, table: int, seat: int) -> Tree:
    """What a seat sees and does now."""
    kind, column = spec.seats[seat], spec.column_of_seat[seat]
    trees = {"observation": view.observation[kind], "legal": view.legal[kind], "action": actions[kind]}
    return {
        "reward": np.zeros(1, np.float32),
        "rewards": np.zeros(len(spec.kinds[kind].rewards), np.float32),
        "clock": view.clock[table].copy(),
        "until": np.zeros((), np.int64),
        **{
            f"{prefix}.{name}": array[table, column].copy()
            for prefix, tree in trees.items()
            for name, array in tree.items()
        },
    }


def as_replay(source: GameSource, recording: Recording, **changes: Any) -> Replay:
    facts = {name: getattr(recording, name) for name in Recording.__dataclass_fields__ if name != "table"}
    spec = source.spec
    players = tuple(SeatPlayer(f"player{team}") for team in spec.teams)
    facts |= {"game": spec.name, "options": {}, "version": "1", "map": map_name(source)}
    return Replay(**{**facts, "seats": players, "teams": spec.teams, **changes})


def decode(
    tmp_path: Path, source: GameSource, given: list[Replay], *, no_op: NoOp | None = None, kind: int = 0, **wanted: Any
) -> list[DecodedReplay]:
    files = {}
    for number, one in enumerate(given):
        files[f"{number:03d}"] = tmp_path / f"{number:03d}.replay"
        files[f"{number:03d}"].write_bytes(encode_replay(one))
    episodes = ReplayEpisodes(files, lambda _: source, game="x", source=source, no_op=no_op, kind=kind, num_tables=3)
    return list(episodes.decode(episodes.replays(), EpisodeFilter(**wanted)))


@pytest.mark.parametrize("name", SOURCES)
def test_playing_again_shows_the_same(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    given, seen = play(source, tables=1 if name == "skirmish" else TABLES)
    for kind, seats in enumerate(source.spec.seats_of_kind):
        decoded = decode(tmp_path, source, given, kind=kind)
        for table, one in enumerate(decoded):
            assert one.skipped == ""
            assert [found.facts.seat for found in one.episodes] == [seat for seat in seats if seen[table][seat]]
            for found in one.episodes:
                rows = seen[table][found.facts.seat]
                assert found.num_decisions == len(rows) == found.facts.length
                for column in column_specs(source.spec.kinds[kind]):
                    if column not in ("elapsed", "over"):
                        values = found.columns[column][: len(rows)]
                        expected = np.stack([row[column] for row in rows]).reshape(values.shape)
                        np.testing.assert_array_equal(values, expected, err_msg=column)
                clocks = [int(row["clock"]) for row in rows] + [int(rows[-1]["until"])]
                elapsed = np.diff(clocks) if source.spec.timed else np.ones(len(rows))
                np.testing.assert_array_equal(found.columns["elapsed"][: len(rows)], elapsed)
                over = found.columns["over"][: len(rows)]
                assert not over[:-1].any()
                assert over[-1] == (not given[table].truncated) == (not found.has_bootstrap)


def test_a_truncated_episode_ends_with_what_was_seen_then(tmp_path: Path) -> None:
    [one], _ = play(Beacon(decisions=5), tables=1)
    [decoded] = decode(tmp_path, Beacon(decisions=5), [one])
    [found] = decoded.episodes
    assert found.has_bootstrap
    game = Beacon(decisions=5).tables(1)
    game.reset(np.array([0]), np.array([0], np.uint64))
    for step in range(5):
        game.step(({head: packed.array()[step].reshape(1, 1) for head, packed in one.action[0].items()},))
    np.testing.assert_array_equal(found.columns["observation.map"][-1], game.view.observation[0]["map"][0, 0])


@pytest.mark.parametrize("name", ["beacon", "building"])
def test_no_ops_are_left_out_and_what_they_brought_is_not(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    head = next(iter(source.spec.kinds[0].action.heads))
    given, _ = play(source, seed=5)
    whole, thin = decode(tmp_path, source, given), decode(tmp_path, source, given, no_op=NoOp(head=head))
    left_out = 0
    for all_of, some_of in zip(whole, thin, strict=True):
        for before, after in zip(all_of.episodes, some_of.episodes, strict=True):
            number = before.num_decisions
            kept: list[int] = []
            reward, elapsed = [], []
            for step in range(number):
                does = before.columns[f"action.{head}"][step] != 0
                if does or step == 0 or step == number - 1 or step % 8 == 0:
                    kept.append(step)
                    reward.append(0.0)
                    elapsed.append(0)
                reward[-1] += float(before.columns["reward"][step])
                elapsed[-1] += int(before.columns["elapsed"][step])
            left_out += number - len(kept)
            assert after.num_decisions == len(kept)
            assert after.facts.length == number
            np.testing.assert_allclose(after.columns["reward"][: len(kept)], reward)
            np.testing.assert_array_equal(after.columns["elapsed"][: len(kept)], elapsed)
            for column, rows in after.columns.items():
                if column.startswith(("observation.", "action.")):
                    np.testing.assert_array_equal(rows[: len(kept)], before.columns[column][kept])
    assert left_out


def test_the_rule_for_no_ops() -> None:
    does_nothing = np.ones(20, np.bool_)
    does_nothing[[3, 9]] = False
    assert np.flatnonzero(kept_decisions(does_nothing)).tolist() == [0, 3, 8, 9, 16, 19]
    assert kept_decisions(np.ones(1, np.bool_)).tolist() == [True]
    assert kept_decisions(np.ones(0, np.bool_)).tolist() == []


def test_what_was_built_is_kept(tmp_path: Path) -> None:
    source = SOURCES["building"]
    [one], _ = play(source, tables=1)
    [decoded] = decode(tmp_path, source, [one])
    game = source.tables(1)
    assert isinstance(game, HasStrategy)
    game.reset(np.array([0]), np.array([one.seed], np.uint64))
    rows = [{head: packed.array() for head, packed in heads.items()} for heads in one.action]
    for step in range(one.num_steps):
        game.step(({"build": rows[0]["build"].reshape(-1, 1, 2)[step]}, {"build": rows[1]["build"][step, None, None]}))
    for found in decoded.episodes:
        np.testing.assert_array_equal(found.build_order, game.strategy.build_order[0, found.facts.seat])
        np.testing.assert_array_equal(found.built, game.strategy.built[0, found.facts.seat])
    shape = ReplayEpisodes({}, lambda _: source, game="x", source=source).strategy
    assert shape == (game.strategy.build_order.shape[2], game.strategy.built.shape[2], False)
    assert ReplayEpisodes({}, lambda _: Beacon(), game="x", source=Beacon()).strategy is None


@pytest.mark.parametrize(
    ("wanted", "left", "dropped"),
    [
        ({}, 4, {}),
        ({"player": ("player1",)}, 2, {"player": 2}),
        ({"outcome": "win"}, 2, {"outcome": 2}),
        ({"outcome": "draw"}, 0, {"outcome": 4}),
        ({"map": "elsewhere"}, 0, {"map": 4}),
        ({"matchup": ("player1", "player0")}, 4, {}),
        ({"matchup": ("player1", "player1")}, 0, {"matchup": 4}),
        ({"game_version": "2"}, 0, {"game_version": 4}),
        ({"min_length": 1000}, 0, {"min_length": 4}),
        ({"max_length": 1}, 0, {"max_length": 4}),
        ({"outcome": "win", "min_length": 1000}, 0, {"outcome": 2, "min_length": 2}),
    ],
)
def test_filters_count_what_they_drop(
    wanted: dict[str, Any], left: int, dropped: dict[str, int], tmp_path: Path
) -> None:
    given, _ = play(ConnectFour(), seed=3)
    decoded = decode(tmp_path, ConnectFour(), given, **wanted)
    assert sum(len(one.episodes) for one in decoded) == left
    total: Counter[str] = sum((Counter(one.dropped) for one in decoded), Counter())
    assert dict(total) == dropped


def test_replays_that_do_not_play_as_recorded_are_skipped_and_named(tmp_path: Path) -> None:
    source = ConnectFour()
    (good, other), _ = play(source)
    heads = {head: packed.array() for head, packed in other.action[0].items()}
    ((head, moves),) = heads.items()

    def with_moves(changed: NDArray[Any]) -> Replay:
        return msgspec.structs.replace(other, action=({head: Packed.of(changed)},))

    given = [
        good,
        msgspec.structs.replace(good, seen=good.seen ^ 1, version="0"),
        msgspec.structs.replace(good, score=tuple(-score for score in good.score)),
        msgspec.structs.replace(other, num_steps=other.num_steps + 1),
        with_moves(np.zeros_like(moves)),  # a column is full after six: the game refuses
        with_moves(np.full_like(moves, 9)),
        msgspec.structs.replace(other, action=({"push": Packed.of(moves)},)),
        msgspec.structs.replace(other, seats=other.seats[:1], teams=(0,), score=(1.0,),
                                step=Packed.of(np.arange(0)), seat=Packed.of(np.arange(0))),
        other,
    ]  # fmt: skip
    decoded = decode(tmp_path, source, given)
    assert [bool(one.episodes) for one in decoded] == [True, *[False] * 7, True]
    reasons = [one.skipped for one in decoded]
    assert "the seats see something else (recorded with version 0, this is code-" in reasons[1]
    assert "ends with score" in reasons[2]
    assert "steps" in reasons[3]
    assert reasons[4]
    assert "beyond its 7 options" in reasons[5]
    assert "its heads are push" in reasons[6]
    assert "1 seats" in reasons[7]
    (tmp_path / "damaged.replay").write_bytes(encode_replay(good)[:-3])
    files = {"damaged": tmp_path / "damaged.replay", "missing": tmp_path / "none", "good": tmp_path / "000.replay"}
    episodes = ReplayEpisodes(files, lambda _: source, game="x", source=source)
    damaged, missing, fine = episodes.decode(list(files), EpisodeFilter())
    assert "cut short" in damaged.skipped
    assert "cannot be read" in missing.skipped
    assert fine.episodes


@dataclass(frozen=True)
class Forgetful:
    """Kuhn poker whose cards do not depend on the seed alone."""

    dealt: list[int]

    @property
    def spec(self) -> GameSpec:
        return Kuhn().spec

    def tables(self, num_tables: int) -> GameBatch:
        return ForgetfulTables(Kuhn().tables(num_tables), self.dealt)

    def bots(self) -> Mapping[str, Bot]:
        return Kuhn().bots()

    def tree(self) -> None:
        return None


class ForgetfulTables:
    def __init__(self, game: GameBatch, dealt: list[int]) -> None:
        self._game, self._dealt = game, dealt
        self.spec: GameSpec = game.spec
        self.view: TableView = game.view
        self.num_tables = game.num_tables

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._dealt.append(len(self._dealt))
        self._game.reset(tables, seeds + np.uint64(len(self._dealt)))

    def step(self, actions: Actions) -> None:
        self._game.step(actions)

    def close(self) -> None:
        self._game.close()


def test_a_game_of_chance_of_its_own_is_found_out() -> None:
    source = Forgetful([])
    given, _ = play(source, tables=8)

    def check() -> None:
        for one in given:
            require_replayable(source, one)

    with pytest.raises(PlaybackError):
        check()
    for one in play(Kuhn(), tables=4)[0]:
        require_replayable(Kuhn(), one)


def test_what_is_around_a_game_is_not_recorded() -> None:
    source = group_seats(ConnectFour(), "per_seat")
    assert len(source.spec.kinds) == 2
    assert innermost(source) == ConnectFour()
    (one, _), _ = play(source)
    assert len(one.action) == 1, "kinds of the game itself"
    require_replayable(ConnectFour(), one)


def test_versions_follow_the_rules() -> None:
    assert game_version(Kuhn()) == game_version(Kuhn())
    assert game_version(Kuhn()).startswith("code-")
    assert game_version(Kuhn()) != game_version(ConnectFour())
    assert map_name(Skirmish(mode="5v5")) == "5v5"
    assert map_name(Kuhn()) == Kuhn().spec.name


def test_a_version_that_is_stated_holds() -> None:
    @dataclass(frozen=True)
    class Stated(Forgetful):
        version: str = "7.1"

    assert game_version(Stated([])) == "7.1"
    assert replace(Stated([]), version="8").version == "8"

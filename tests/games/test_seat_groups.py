"""Regrouping seats: every seat sees and does what it did, whichever policy acts for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Vector
from ludus.data.trees import IntArray, Tree, put
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.check import check_game
from ludus.games.game import GameBatch, GameSource, Turn, allocate_actions
from ludus.games.lift import Lifted
from ludus.games.seat_groups import GroupedTables, group_seats, policy_of_seat

NUMBER = ObservationSpec(parts={"number": Vector(size=1)})
GUESS = ActionSpec(heads={"guess": Choice(num=5)})


class RedAndBlue:
    """Kinds of seat that differ in name only. Everybody guesses; the sum of the guesses is shown next."""

    spec = GameSpec(
        name="red_and_blue",
        kinds=tuple(SeatKind(name=name, observation=NUMBER, action=GUESS) for name in ("red", "blue")),
        seats=(0, 1, 1, 0),
        teams=(0, 0, 1, 1),
        max_length=3,
    )

    def reset(self, seed: int) -> Turn:
        self.rounds, self.sum = 0, seed % 7
        return self.turn()

    def step(self, actions: Any) -> Turn:
        self.sum += sum((seat + 1) * actions[seat] for seat in range(4))
        self.rounds += 1
        if self.rounds == 3:
            return Turn(observations={}, over=True, score=(0.0, 0.0))
        return self.turn()

    def turn(self) -> Turn:
        return Turn(observations={seat: np.array([self.sum + seat], np.float32) for seat in range(4)})


class SeatBot:
    """Guesses the number of its seat; complains if it is asked for seats of several kinds at once."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        assert len({game.spec.seats[seat] for seat in seats.tolist()}) == 1
        assert {kind.name for kind in game.spec.kinds} == {"red", "blue"}
        return {"guess": seats.astype(np.int32)}


GROUPED: dict[str, tuple[GameSource, Any, tuple[str, ...]]] = {
    "hills_per_seat": (Hills(), "per_seat", ("seat0", "seat1", "seat2", "seat3")),
    "hills_per_place": (Hills(), "per_place", ("player_0", "player_1", "player_0", "player_1")),
    "hills_by_team": (Hills(), {"team1/*": "away", "*": "home"}, ("home", "home", "away", "away")),
    "hills_uneven": (Hills(), {"seat2": "odd_one", "player": "rest"}, ("rest", "rest", "odd_one", "rest")),
    "siege_per_seat": (Siege(), "per_seat", ("seat0", "seat1")),
    "siege_by_kind": (Siege(), {"att*": "one", "defender": "two"}, ("one", "two")),
    "goofspiel": (Goofspiel(), {"seat[02]": "outer", "*": "inner"}, ("outer", "inner", "outer")),
    "two_kinds_at_once": (Lifted(RedAndBlue), {"*": "all"}, ("all",) * 4),
    "tic_tac_toe": (TicTacToe(), "per_seat", ("seat0", "seat1")),
}


@pytest.fixture(params=GROUPED)
def case(request: pytest.FixtureRequest) -> tuple[GameSource, GameSource, tuple[str, ...]]:
    game, policies, names = GROUPED[request.param]
    return game, group_seats(game, policies), names


Case = tuple[GameSource, GameSource, tuple[str, ...]]


def test_every_seat_has_its_policy(case: Case) -> None:
    game, grouped, names = case
    spec = grouped.spec
    assert tuple(spec.kinds[kind].name for kind in spec.seats) == names
    assert replace(spec, kinds=game.spec.kinds, seats=game.spec.seats) == game.spec
    for seat, kind in enumerate(spec.seats):
        assert replace(spec.kinds[kind], name="") == replace(game.spec.kinds[game.spec.seats[seat]], name="")


def test_a_grouped_game_keeps_all_promises(case: Case) -> None:
    _, grouped, _ = case
    report = check_game(grouped, episodes=8, tables=4, seed=3)
    assert report.ok, str(report)


def _shown(game: GameBatch) -> list[Tree]:
    """Per seat, all its arrays."""
    places = zip(game.spec.seats, game.spec.column_of_seat, strict=True)
    return [
        {
            f"{what}.{name}": array[:, column].copy()
            for what, tree in (("seen", game.view.observation[kind]), ("legal", game.view.legal[kind]))
            for name, array in tree.items()
        }
        for kind, column in places
    ]


def test_seats_see_and_do_what_they_did(case: Case) -> None:
    source, grouped_source, _ = case
    plain, grouped = source.tables(6), grouped_source.tables(6)
    bots = source.bots()["random"], grouped_source.bots()["random"]
    tables, seeds = np.arange(6), np.arange(6).astype(np.uint64)
    rng = np.random.default_rng(0)
    plain.reset(tables, seeds)
    grouped.reset(tables, seeds)
    for _ in range(plain.spec.max_length):
        for seat, (one, other) in enumerate(zip(_shown(plain), _shown(grouped), strict=True)):
            acts = plain.view.to_act[:, seat]
            assert one.keys() == other.keys()
            for name, array in one.items():
                np.testing.assert_array_equal(array[acts], other[name][acts])
        for name in ("to_act", "reward", "over", "truncated", "score", "clock"):
            np.testing.assert_array_equal(getattr(plain.view, name), getattr(grouped.view, name))
        actions = allocate_actions(plain.spec, 6), allocate_actions(grouped.spec, 6)
        for seat in range(plain.spec.num_seats):
            acting = np.flatnonzero(plain.view.to_act[:, seat])
            if not len(acting):
                continue
            seats, seed = np.full(len(acting), seat), int(rng.integers(2**32))
            for game, bot, made in zip((plain, grouped), bots, actions, strict=True):
                chosen = bot.act(game, acting, seats, np.random.default_rng(seed))
                put(made[game.spec.seats[seat]], (acting, game.spec.column_of_seat[seat]), chosen)
        plain.step(actions[0])
        grouped.step(actions[1])
    assert (plain.view.over | plain.view.truncated).any()
    grouped.close()


@pytest.mark.parametrize("policies", ["per_seat", "per_place", {"team1/*": "away", "*": "home"}])
def test_evenly_spaced_seats_are_views(policies: Any) -> None:
    tables = group_seats(Hills(), policies).tables(4)
    assert isinstance(tables, GroupedTables)
    for group in range(len(tables.spec.kinds)):
        for shown, own in ((tables.view.observation, tables.game.view.observation),
                           (tables.view.legal, tables.game.view.legal)):  # fmt: skip
            assert all(np.shares_memory(array, own[0][name]) for name, array in shown[group].items())


def test_bots_see_the_kinds_that_they_were_written_for() -> None:
    source = group_seats(Lifted(RedAndBlue, extra_bots={"seat": SeatBot()}), {"*": "all"})
    game = source.tables(2)
    game.reset(np.arange(2), np.zeros(2, np.uint64))
    seats = np.array([3, 0, 2, 1])
    chosen = source.bots()["seat"].act(game, np.array([0, 1, 1, 0]), seats, np.random.default_rng(0))
    assert chosen["guess"].tolist() == seats.tolist()


def test_a_bot_that_knows_its_kind_plays_as_before() -> None:
    plain, grouped = Siege(), group_seats(Siege(), "per_seat")
    for seat in (0, 1):
        acted = []
        for source in (plain, grouped):
            game = source.tables(5)
            game.reset(np.arange(5), np.arange(5).astype(np.uint64))
            rng = np.random.default_rng(1)
            acted.append(source.bots()["storming"].act(game, np.arange(5), np.full(5, seat), rng))
        assert acted[0].keys() == acted[1].keys()
        for name, array in acted[0].items():
            np.testing.assert_array_equal(array, acted[1][name])


def test_a_bot_that_searches_plays_at_grouped_tables() -> None:
    source = group_seats(TicTacToe(), "per_seat")
    game = source.tables(1)
    game.reset(np.zeros(1, np.int64), np.zeros(1, np.uint64))
    searching = [name for name in source.bots() if name != "random"]
    for name in searching:
        chosen = source.bots()[name].act(game, np.zeros(1, np.int64), np.zeros(1, np.int64), np.random.default_rng(0))
        assert all(len(array) == 1 for array in chosen.values())
    assert searching


def test_shared_is_the_game_itself() -> None:
    game = Hills()
    assert group_seats(game, "shared") is game
    assert policy_of_seat(game.spec, "shared") == ("player",) * 4


def test_the_first_pattern_that_fits_holds() -> None:
    policies = {"team0/seat0": "first", "*/seat0": "second", "*": "third"}
    assert policy_of_seat(Hills().spec, policies) == ("first", "third", "second", "third")


@pytest.mark.parametrize(
    ("game", "policies", "message"),
    [
        (Siege(), {"*": "one"}, r"'one' cannot act for both team0/seat0 \(attacker\) and team1/seat0 \(def"),
        (Hills(), {"*/seat0": "a"}, r"policies for hills: no pattern fits team0/seat1, only \*/seat0 given"),
        (Hills(), {}, "no pattern fits team0/seat0, only none"),
        (Hills(), {"*/seta1": "a", "*": "b"}, r"'\*/seta1' fits no seat; the seats are team0/seat0 = seat0 = player"),
        (Hills(), {"*": "a", "*/seat1": "b"}, r"every seat that '\*/seat1' fits has an earlier pattern"),
        (Hills(), {"*": "a/b"}, "'a/b' is no name for a policy"),
        (Hills(), "per_team", "must be one of shared, per_seat, per_place, or patterns"),
    ],
)
def test_what_cannot_be_is_named(game: GameSource, policies: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = group_seats(game, policies).spec

"""What a person is shown: boards, cards, the map, numbers; and nothing that its seat may not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ludus.evaluation.play.views import find_view
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.games.builtin.skirmish import Skirmish, SkirmishTables
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource, allocate_actions


def played(source: GameSource, moves: list[int], seed: int = 0) -> GameBatch:
    """A table of a game of one choice a turn after these moves."""
    tables = source.tables(1)
    tables.reset(np.array([0]), np.array([seed], np.uint64))
    actions = allocate_actions(source.spec, 1)
    for move in moves:
        actions[0]["move"][0, tables.view.to_act[0]] = move
        tables.step(actions)
    return tables


def stones(shown: dict[str, Any]) -> str:
    return "".join(".XO"[owner + 1] for owner in shown["stones"])


def test_stones_fall_and_four_in_a_line_are_marked() -> None:
    source = ConnectFour()
    view = find_view(source)
    tables = played(source, [3, 2, 3, 2, 3, 2])
    shown = view.show(tables, 0, 2)
    assert stones(shown) == "." * 21 + "..OX..." * 3
    assert (shown["latest"], shown["line"]) == (3 * 7 + 2, [])
    tables = played(source, [3, 2, 3, 2, 3, 2, 3])
    shown = view.show(tables, None, 3)
    assert shown["line"] == [2 * 7 + 3, 3 * 7 + 3, 4 * 7 + 3, 5 * 7 + 3]
    written = view.written(shown).splitlines()
    assert written[2:] == [". . . X . . .", *[". . O X . . ."] * 3, "1 2 3 4 5 6 7", "X has played 4"]


def test_a_free_cell_shows_the_number_that_is_typed() -> None:
    source = TicTacToe()
    view = find_view(source)
    shown = view.show(played(source, [4, 0]), 1, 0)
    assert view.written(shown) == "O 2 3\n4 X 6\n7 8 9\nO has played 1"
    assert shown["latest"] == 0
    shown = view.show(played(source, [0, 3, 1, 4, 2]), None, 2)
    assert shown["line"] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_a_card_of_kuhn_is_its_owners_until_the_end(seed: int) -> None:
    source = Kuhn()
    view = find_view(source)
    tables = played(source, [0], seed)
    cards = [hand["card"] for hand in view.show(tables, None, None)["hands"]]
    assert len({*cards}) == 2
    for seat in (0, 1):
        shown = view.show(tables, seat, 0)
        assert [hand["card"] for hand in shown["hands"]] == [card if one == seat else None for one, card in
                                                             enumerate(cards)]  # fmt: skip
        assert cards[1 - seat] not in view.written(shown)
    assert view.options(tables, 1) == ["check", "bet"]
    assert view.options(played(source, [1], seed), 1) == ["fold", "call"]
    assert [hand["stake"] for hand in view.show(played(source, [1, 1], seed), None, 1)["hands"]] == [2, 2]


def test_leduc_names_what_a_move_means_and_turns_up_the_public_card_late() -> None:
    source = Leduc()
    view = find_view(source)
    tables = played(source, [1, 2])
    shown = view.show(tables, 0, 2)
    assert [move["name"] for move in shown["moves"]] == ["check", "raise"]
    assert (shown["public"], shown["hands"][1]["card"]) == ("", None)
    assert [hand["stake"] for hand in shown["hands"]] == [1, 3]
    assert view.options(tables, 0) == ["fold", "call", "raise"]
    tables = played(source, [1, 2, 1])
    shown = view.show(tables, 0, 1)
    assert len(shown["public"]) == 2
    assert shown["public"] != shown["hands"][0]["card"]
    assert view.options(tables, 0) == ["fold", "check", "raise"]
    assert f"on the table: {shown['public']}" in view.written(shown)


@pytest.mark.parametrize("seat", [0, 1])
def test_the_map_of_skirmish_ends_at_the_fog(seat: int) -> None:
    source = Skirmish()
    view = find_view(source)
    tables = source.tables(1)
    assert isinstance(tables, SkirmishTables)
    tables.reset(np.array([0]), np.array([3], np.uint64))
    shown = view.show(tables, seat, None)
    assert {unit[2] for unit in shown["units"]} == {seat}, "the enemy is far away"
    base = shown["units"][0]
    assert base[0] == 0
    assert (base[3] < 8, base[4] < 8) == (True, True), "one's own base is at the lower left"
    assert shown["sides"][1 - seat] is None, "nobody knows what the other has"
    assert shown["sides"][seat]["resources"] == 120
    assert "0" in shown["fog"]
    assert len(shown["patches"]) == 4

    everything = view.show(tables, None, None)
    assert {unit[2] for unit in everything["units"]} == {0, 1}
    assert (len(everything["patches"]), everything["fog"]) == (8, None)
    assert len({unit[0] for unit in everything["units"]}) == len(everything["units"])

    tables.state.x[0, 1 - seat, 1], tables.state.y[0, 1 - seat, 1] = (
        tables.state.x[0, seat, 0] + 1.0,
        tables.state.y[0, seat, 0],
    )  # a worker of the enemy comes to the base
    tables.state.order[0, 1 - seat, 1], tables.state.carries[0, 1 - seat, 1] = 4, True
    [seen] = [unit for unit in view.show(tables, seat, None)["units"] if unit[2] != seat]
    assert seen[0] == 28 + 1
    assert seen[6:8] == [0, 0], "what it is told and carries is not to be seen"


def test_another_game_shows_the_numbers_that_the_seat_sees() -> None:
    source = RockPaperScissors(rounds=2)
    view = find_view(source)
    tables = source.tables(1)
    tables.reset(np.array([0]), np.array([0], np.uint64))
    actions = allocate_actions(source.spec, 1)
    actions[0]["move"][0] = (1, 2)
    tables.step(actions)
    shown = view.show(tables, 1, None)
    assert shown == {
        "kind": "numbers",
        "seats": [{"seat": 1, "parts": [{"name": "previous", "numbers": [0, 0, 0, 1, 0, 1, 0]}]}],
    }
    assert view.options(tables, 1) == ["rock", "paper", "scissors"]
    assert view.written(shown) == "seat 1 sees\n  previous: 0 0 0 1 0 1 0"


def test_a_game_with_pictures_is_drawn_as_the_seat_sees_it() -> None:
    asked: list[int | None] = []

    def draw(tables: GameBatch, seat: int | None) -> str:
        asked.append(seat)
        return "data:,"

    source = RockPaperScissors()
    shown = find_view(source, lambda _: draw).show(source.tables(1), 1, None)
    assert (shown, asked) == ({"kind": "picture", "picture": "data:,"}, [1])

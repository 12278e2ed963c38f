"""Walks whole game trees next to OpenSpiel's: encodings, legal actions, chance and returns."""

from typing import Any

import numpy as np
import pytest

from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc

pyspiel = pytest.importorskip("pyspiel")
pytestmark = pytest.mark.slow


class Comparison:
    """Counts histories and checks that information states are told apart in the same way."""

    def __init__(self) -> None:
        self.histories = 0
        self.ours_of: dict[tuple[int, str], Any] = {}
        self.theirs_of: dict[tuple[int, Any], str] = {}

    def walk(self, ours: TreeState, theirs: Any) -> None:
        self.histories += 1
        if theirs.is_terminal():
            assert ours.seat() == OVER
            assert list(ours.returns()) == theirs.returns()
            return
        if theirs.is_chance_node():
            assert ours.seat() == CHANCE
            np.testing.assert_allclose(list(ours.chance_outcomes()), theirs.chance_outcomes(), rtol=1e-15)
            actions = [outcome for outcome, _ in theirs.chance_outcomes()]
        else:
            seat = theirs.current_player()
            assert ours.seat() == seat
            actions = theirs.legal_actions()
            assert list(ours.legal_actions()) == actions
            assert ours.observation()["information"].tolist() == theirs.information_state_tensor()
            key, string = ours.information_state(), theirs.information_state_string()
            assert self.ours_of.setdefault((seat, string), key) == key
            assert self.theirs_of.setdefault((seat, key), string) == string
        for action in actions:
            self.walk(ours.child(action), theirs.child(action))


@pytest.mark.parametrize(
    ("source", "name", "histories", "infostates"),
    [
        (Kuhn(), "kuhn_poker", 58, 12),
        (Kuhn(seats=3), "kuhn_poker(players=3)", 617, 48),
        (Kuhn(seats=4), "kuhn_poker(players=4)", 7886, 160),
        (Leduc(), "leduc_poker", 9457, 936),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_history(source: Kuhn | Leduc, name: str, histories: int, infostates: int) -> None:
    game = pyspiel.load_game(name)
    comparison = Comparison()
    comparison.walk(source.tree(), game.new_initial_state())
    assert comparison.histories == histories
    assert len(comparison.ours_of) == len(comparison.theirs_of) == infostates
    assert source.spec.max_length == game.max_game_length()
    assert source.spec.num_seats == game.num_players()
    (size,) = game.information_state_tensor_shape()
    assert source.spec.kinds[0].observation.arrays["information"].shape == (size,)

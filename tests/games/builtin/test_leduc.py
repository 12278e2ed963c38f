import numpy as np
import pytest

from ludus.data.game_tree import CHANCE, OVER, FlatTree
from ludus.games.builtin.leduc import CALL, FOLD, RAISE, Leduc, LeducRules, LeducState
from ludus.games.game import GameSource

JACK, QUEEN, OTHER_QUEEN, KING = 0, 2, 3, 4


@pytest.mark.parametrize(
    ("cards", "rounds", "returns"),
    [
        ((JACK, KING), ((RAISE, FOLD), ()), [1, -1]),
        ((JACK, KING), ((CALL, RAISE, FOLD), ()), [-1, 1]),
        ((JACK, KING), ((CALL, RAISE, RAISE, FOLD), ()), [3, -3]),
        ((JACK, KING, QUEEN), ((CALL, CALL), (CALL, CALL)), [-1, 1]),
        ((QUEEN, KING, OTHER_QUEEN), ((CALL, CALL), (CALL, CALL)), [1, -1]),
        ((QUEEN, OTHER_QUEEN, KING), ((RAISE, CALL), (RAISE, CALL)), [0, 0]),
        ((JACK, KING, QUEEN), ((RAISE, CALL), (RAISE, RAISE, FOLD)), [-7, 7]),
        ((JACK, KING, QUEEN), ((CALL, RAISE, RAISE, CALL), (CALL, RAISE, RAISE, CALL)), [-13, 13]),
    ],
)
def test_payoffs(cards: tuple[int, ...], rounds: tuple[tuple[int, ...], tuple[int, ...]], returns: list[float]) -> None:
    state = LeducState(cards, rounds)
    assert state.seat() == OVER
    assert list(state.returns()) == returns


def test_folding_needs_a_raise_and_raises_are_two_a_round() -> None:
    start = LeducState((JACK, KING))
    assert tuple(start.legal_actions()) == (CALL, RAISE)
    assert tuple(start.child(CALL).legal_actions()) == (CALL, RAISE)
    assert tuple(start.child(RAISE).legal_actions()) == (FOLD, CALL, RAISE)
    assert tuple(start.child(RAISE).child(RAISE).legal_actions()) == (FOLD, CALL)


def test_the_second_round_starts_with_a_public_card_and_seat_0() -> None:
    dealing = LeducState((JACK, KING)).child(RAISE).child(CALL)
    assert dealing.seat() == CHANCE
    assert [card for card, _ in dealing.chance_outcomes()] == [1, 2, 3, 5]
    second = dealing.child(QUEEN)
    assert second.seat() == 0
    assert tuple(second.legal_actions()) == (CALL, RAISE)


def test_encoding_is_seat_cards_and_moves_by_round() -> None:
    shown = LeducState((1, 5, 4), ((CALL, RAISE, CALL), (RAISE,))).observation()["information"]
    assert shown.tolist() == [
        *(0, 1),
        *(0, 0, 0, 0, 0, 1),
        *(0, 0, 0, 0, 1, 0),
        *(1, 0, 0, 1, 1, 0, 0, 0),
        *(0, 1, 0, 0, 0, 0, 0, 0),
    ]


def test_it_is_a_game_source() -> None:
    source = Leduc()
    assert isinstance(source, GameSource)
    assert set(source.bots()) == {"random", "rules"}
    assert source.spec.max_length == 8


def test_the_rules_beat_random_play_from_both_seats() -> None:
    tree = FlatTree.build(Leduc().tree())
    rules = LeducRules().probabilities(tree.observations, tree.legal)
    for seat in (0, 1):
        probs = np.where((tree.infostate_seat == seat)[:, None], rules, tree.uniform())
        assert tree.values(probs)[seat] > 0.5

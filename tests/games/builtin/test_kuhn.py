import numpy as np
import pytest

from ludus.data.game_tree import CHANCE, OVER, FlatTree
from ludus.games.builtin.kuhn import BET, JACK, KING, PASS, QUEEN, Kuhn, KuhnEquilibrium, KuhnRules, KuhnState
from ludus.games.game import GameSource


@pytest.mark.parametrize(
    ("cards", "moves", "returns"),
    [
        ((KING, QUEEN), (PASS, PASS), [1, -1]),
        ((JACK, QUEEN), (PASS, PASS), [-1, 1]),
        ((JACK, QUEEN), (BET, PASS), [1, -1]),
        ((JACK, QUEEN), (BET, BET), [-2, 2]),
        ((KING, QUEEN), (PASS, BET, PASS), [-1, 1]),
        ((KING, QUEEN), (PASS, BET, BET), [2, -2]),
        ((0, 1, 2), (PASS, PASS, PASS), [-1, -1, 2]),
        ((3, 1, 2), (PASS, BET, PASS, BET), [3, -2, -1]),
        ((0, 3, 2), (PASS, PASS, BET, BET, BET), [-2, 4, -2]),
    ],
)
def test_payoffs(cards: tuple[int, ...], moves: tuple[int, ...], returns: list[float]) -> None:
    state = KuhnState(len(cards), cards, moves)
    assert state.seat() == OVER
    assert list(state.returns()) == returns


def test_encoding_is_seat_card_and_moves() -> None:
    state = KuhnState(2, (KING, QUEEN), (PASS,))
    assert state.observation()["information"].tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0]


def test_seats_are_dealt_different_cards() -> None:
    root = Kuhn().tree()
    assert root.seat() == CHANCE
    assert root.child(KING).chance_outcomes() == [(JACK, 0.5), (QUEEN, 0.5)]


def test_it_is_a_game_source() -> None:
    source = Kuhn()
    assert isinstance(source, GameSource)
    assert set(source.bots()) == {"random", "rules", "equilibrium"}
    assert set(Kuhn(seats=3).bots()) == {"random"}
    assert source.spec.max_length == 3
    assert Kuhn(seats=3).spec.max_length == 5
    with pytest.raises(ValueError, match=r"Kuhn\.seats must be 2, 3 or 4, got 1"):
        Kuhn(seats=1)


@pytest.mark.parametrize("bluff", [0.0, 0.2, 1 / 3])
def test_the_equilibrium_bot_cannot_be_exploited(bluff: float) -> None:
    tree = FlatTree.build(Kuhn().tree())
    probs = KuhnEquilibrium(bluff=bluff).probabilities(tree.observations, tree.legal)
    assert tree.nash_conv(probs) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(tree.values(probs), [-1 / 18, 1 / 18], atol=1e-12)


def test_the_equilibrium_is_not_any_bluff() -> None:
    with pytest.raises(ValueError, match=r"bluff must be in \[0, 1/3\], got 0.5"):
        KuhnEquilibrium(bluff=0.5)


def test_the_rules_beat_random_play_from_both_seats() -> None:
    tree = FlatTree.build(Kuhn().tree())
    rules = KuhnRules().probabilities(tree.observations, tree.legal)
    for seat in (0, 1):
        probs = np.where((tree.infostate_seat == seat)[:, None], rules, tree.uniform())
        assert tree.values(probs)[seat] > 0.1

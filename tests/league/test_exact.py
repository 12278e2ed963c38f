import pytest

from ludus.data.tree import FlatTree
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.league.equilibrium import cfr_br

# From OpenSpiel's CFRBRSolver, average policy after each iteration.
KUHN = [0.9166666666666666, 0.33333333333333337, 0.3194444444444445, 0.2604166666666667, 0.22666666666666674]
LEDUC = [4.747222222222222, 4.006867283950617, 3.4090489231017034, 2.8982539553095172, 2.5367193593344504]
LEDUC += [2.1535358439518117, 2.010877180726298, 1.7900207815867364]


def test_cfr_br_on_kuhn() -> None:
    assert cfr_br(FlatTree.build(Kuhn().tree()), 5) == pytest.approx(KUHN, abs=1e-10)


def test_cfr_br_on_leduc() -> None:
    assert cfr_br(FlatTree.build(Leduc().tree()), 8) == pytest.approx(LEDUC, abs=1e-10)


def test_cfr_br_converges_on_kuhn() -> None:
    assert cfr_br(FlatTree.build(Kuhn().tree()), 500)[-1] < 0.02


def test_cfr_br_needs_two_seats() -> None:
    with pytest.raises(ValueError, match="CFR-BR needs 2 seats, this tree has 3"):
        cfr_br(FlatTree.build(Kuhn(seats=3).tree()), 1)

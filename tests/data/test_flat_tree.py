from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER, FlatTree, ForgetfulSeatError, Probs, TreeState
from ludus.data.trees import Tree
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc


@pytest.fixture(scope="module")
def kuhn() -> FlatTree:
    return FlatTree.build(Kuhn().tree())


@pytest.fixture(scope="module")
def three() -> FlatTree:
    return FlatTree.build(Kuhn(seats=3).tree())


@pytest.fixture(scope="module")
def leduc() -> FlatTree:
    return FlatTree.build(Leduc().tree())


def random_policy(tree: FlatTree, seed: int) -> Probs:
    draws = np.random.default_rng(seed).exponential(size=tree.legal.shape) * tree.legal
    return np.asarray(draws / draws.sum(axis=1, keepdims=True))


def walked_values(tree: FlatTree, state: TreeState, probs: Probs) -> NDArray[np.float64]:
    """Expected returns by plain recursion over histories."""
    seat = state.seat()
    if seat == OVER:
        return np.array(state.returns())
    if seat == CHANCE:
        edges = list(state.chance_outcomes())
    else:
        row = tree.keys.index(state.information_state())
        edges = [(action, float(probs[row, action])) for action in state.legal_actions()]
    return np.asarray(sum(p * walked_values(tree, state.child(action), probs) for action, p in edges))


def pure_deviations(tree: FlatTree, seat: int, probs: Probs) -> Iterator[Probs]:
    """`probs` with the seat's rows replaced by each of its pure strategies."""
    rows = np.flatnonzero(tree.infostate_seat == seat)
    for actions in product(*(np.flatnonzero(tree.legal[row]) for row in rows)):
        policy = probs.copy()
        policy[rows] = 0.0
        policy[rows, actions] = 1.0
        yield policy


def test_sizes(kuhn: FlatTree, leduc: FlatTree) -> None:
    assert (len(kuhn.seat), len(kuhn.keys)) == (58, 12)
    assert (len(leduc.seat), len(leduc.keys)) == (9457, 936)
    assert leduc.observations["information"].shape == (936, 30)


def test_nodes_are_in_order_of_depth_with_children_together(leduc: FlatTree) -> None:
    assert (np.diff(leduc.depth) >= 0).all()
    assert (leduc.depth[1:] == leduc.depth[leduc.parent[1:]] + 1).all()
    assert (np.diff(leduc.parent) >= 0).all()


def test_values_agree_with_a_walk(kuhn: FlatTree, three: FlatTree) -> None:
    for tree, source in ((kuhn, Kuhn()), (three, Kuhn(seats=3))):
        probs = random_policy(tree, 1)
        np.testing.assert_allclose(tree.values(probs), walked_values(tree, source.tree(), probs), atol=1e-12)


def test_no_pure_strategy_does_better_than_the_best_response(kuhn: FlatTree) -> None:
    for seed, seat in product(range(5), (0, 1)):
        probs = random_policy(kuhn, seed)
        value, policy = kuhn.best_response(seat, probs)
        best = max(kuhn.values(deviation)[seat] for deviation in pure_deviations(kuhn, seat, probs))
        assert value == pytest.approx(best, abs=1e-12)
        assert kuhn.values(policy)[seat] == pytest.approx(value, abs=1e-12)
        others = kuhn.infostate_seat != seat
        np.testing.assert_array_equal(policy[others], probs[others])


def test_best_responses_with_three_seats(three: FlatTree) -> None:
    probs = random_policy(three, 3)
    rng = np.random.default_rng(0)
    for seat in range(3):
        value, policy = three.best_response(seat, probs)
        assert three.values(policy)[seat] == pytest.approx(value, abs=1e-12)
        rows = three.infostate_seat == seat
        for row in np.flatnonzero(rows):  # no single change helps, nor does a random policy
            changed = policy.copy()
            changed[row] = changed[row, ::-1]
            assert three.values(changed)[seat] <= value + 1e-12
            other = np.where(rows[:, None], random_policy(three, int(rng.integers(1000))), probs)
            assert three.values(other)[seat] <= value + 1e-12
    assert three.nash_conv(probs) > 0.0


def test_nash_conv_of_known_policies(kuhn: FlatTree, leduc: FlatTree) -> None:
    assert kuhn.nash_conv(kuhn.uniform()) == pytest.approx(11 / 12, abs=1e-12)
    assert leduc.nash_conv(leduc.uniform()) == pytest.approx(4.747222222222222, abs=1e-12)
    assert leduc.exploitability(leduc.uniform()) == pytest.approx(4.747222222222222 / 2, abs=1e-12)
    first = np.eye(2)[kuhn.legal.argmax(axis=1)]
    assert kuhn.nash_conv(first) == pytest.approx(2.0, abs=1e-12)
    first = np.eye(3)[leduc.legal.argmax(axis=1)]
    assert leduc.nash_conv(first) == pytest.approx(2.0, abs=1e-12)


def test_a_mixture_earns_what_drawing_a_policy_per_seat_earns(kuhn: FlatTree, leduc: FlatTree) -> None:
    weights = np.array([[0.2, 0.5, 0.3], [0.6, 0.0, 0.4]])
    for tree in (kuhn, leduc):
        policies = np.stack([random_policy(tree, seed) for seed in range(3)])
        policies[0] = tree.best_response(0, policies[1])[1]  # pure rows: some states are never reached
        drawn = np.zeros(2)
        for first, second in product(range(3), repeat=2):
            joint = np.where((tree.infostate_seat == 0)[:, None], policies[first], policies[second])
            drawn += weights[0, first] * weights[1, second] * tree.values(joint)
        mixed = tree.mixture(policies, weights)
        np.testing.assert_allclose(tree.values(mixed), drawn, atol=1e-12)
        np.testing.assert_allclose(mixed.sum(axis=1), 1.0)
        averaged = np.where(
            (tree.infostate_seat == 0)[:, None],
            np.tensordot(weights[0], policies, 1),
            np.tensordot(weights[1], policies, 1),
        )
        assert np.abs(tree.values(averaged) - drawn).max() > 1e-4  # averaging rows is not mixing


def test_a_mixture_takes_one_weight_per_policy(three: FlatTree) -> None:
    policies = np.stack([random_policy(three, seed) for seed in range(2)])
    drawn = np.zeros(3)
    for choice in product(range(2), repeat=3):
        joint = policies[np.array(choice)[three.infostate_seat], np.arange(len(three.keys))]
        drawn += np.prod(np.array([0.3, 0.7])[list(choice)]) * three.values(joint)
    np.testing.assert_allclose(three.values(three.mixture(policies, [0.3, 0.7])), drawn, atol=1e-12)


def test_what_is_not_a_policy_is_refused(kuhn: FlatTree, leduc: FlatTree) -> None:
    with pytest.raises(ValueError, match=r"has shape \(12, 2\), got \(936, 3\)"):
        kuhn.values(leduc.uniform())
    with pytest.raises(ValueError, match=r"not probabilities of the legal actions \[1, 2\]"):
        leduc.nash_conv(np.full((936, 3), 1 / 3))
    with pytest.raises(ValueError, match="not probabilities"):
        kuhn.nash_conv(np.full((12, 2), 0.4))


@dataclass(frozen=True)
class Forgetful:
    """One seat that moves twice and forgets its first move."""

    moves: tuple[int, ...] = ()
    offered: tuple[int, ...] = (0, 1)

    def seat(self) -> int:
        return OVER if len(self.moves) == 2 else 0

    def legal_actions(self) -> Sequence[int]:
        return self.offered if self.moves else (0, 1)

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        return ()

    def child(self, action: int) -> "Forgetful":
        return Forgetful((*self.moves, action), self.offered)

    def returns(self) -> Sequence[float]:
        return [float(sum(self.moves))]

    def information_state(self) -> int:
        return len(self.moves)

    def observation(self) -> Tree:
        return {"moves": np.array([len(self.moves)], np.float32)}


def test_forgetting_is_refused() -> None:
    with pytest.raises(ForgetfulSeatError, match="seat 0 forgets its own decisions at information state 1"):
        FlatTree.build(Forgetful())


@pytest.mark.parametrize("source", [Kuhn(), Kuhn(seats=3), Leduc()], ids=repr)
def test_action_values_are_what_a_seat_gets_for_each_action(source: Kuhn | Leduc) -> None:
    tree = FlatTree.build(source.tree())
    probs = np.random.default_rng(4).random(tree.legal.shape) * tree.legal
    probs /= probs.sum(axis=1, keepdims=True)
    found = tree.action_values(probs)
    for number in np.random.default_rng(5).choice(len(probs), 8, replace=False):
        seat = tree.infostate_seat[number]
        # Reached with certainty as far as it depends on the seat, its return is changed by this decision alone.
        here = np.flatnonzero(tree.infostate == number)
        sure = probs.copy()
        sequence = tree.infostate_parent[number]
        while sequence < tree.legal.size:
            row, action = divmod(int(sequence), tree.legal.shape[1])
            sure[row] = np.eye(tree.legal.shape[1])[action]
            sequence = tree.infostate_parent[row]
        reach = sum(_reach(tree, sure, int(node)) for node in here)
        values = []
        for action in np.flatnonzero(tree.legal[number]):
            changed = sure.copy()
            changed[number] = np.eye(tree.legal.shape[1])[action]
            values.append(tree.values(changed)[seat] / reach)
        expected = np.array(values) - values[0]
        legal = found[number][tree.legal[number]]
        np.testing.assert_allclose(legal - legal[0], expected, atol=1e-9)
    assert not found[~tree.legal].any()


def test_action_values_at_the_root_average_to_the_value() -> None:
    tree = FlatTree.build(Kuhn().tree())
    probs = tree.uniform()
    first = (tree.infostate_seat == 0) & (tree.infostate_depth == 0)
    assert (tree.action_values(probs) * probs)[first].sum(axis=1).mean() == pytest.approx(tree.values(probs)[0])


def _reach(tree: FlatTree, probs: np.ndarray, node: int) -> float:
    reach = 1.0
    while node > 0:
        parent = int(tree.parent[node])
        decided = tree.seat[parent] >= 0
        reach *= float(probs[tree.infostate[parent], tree.action[node]] if decided else tree.chance[node])
        node = parent
    return reach

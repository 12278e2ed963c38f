"""Tables of games whose tree is small enough to walk: a step is a look-up in the flattened tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, FlatTree, TreeState
from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray
from ludus.games.game import Actions
from ludus.games.seeding import uniform
from ludus.games.tables import ArrayTables


class TreeBatch(ArrayTables):
    """Tables of a turn-based game with one kind of seat and one `Choice` head.

    Every call writes all tables with `take`, which is several times faster than scattering rows.
    """

    def __init__(self, spec: GameSpec, root: TreeState, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        (kind,) = spec.kinds
        (self._head,) = kind.action.heads
        self._root = root
        self._tree = tree = flat_tree(cast("Any", root))  # hashable, which the protocol of a state does not say
        self._moves = successors(tree)
        # Rows of the view per node. Only the seat to move has legal actions.
        self._reward = tree.returns.astype(np.float32)
        teams = [tree.returns[:, list(seats)].mean(axis=1) for seats in spec.seats_of_team]
        self._score = np.stack(teams, axis=1).astype(np.float32)
        self._to_act = tree.seat[:, None] == np.arange(spec.num_seats)
        legal = np.pad(tree.legal, ((0, 0), (0, kind.num_options(self._head) - tree.legal.shape[1])))
        self._legal = self._to_act[:, :, None] & legal[tree.infostate][:, None, :]
        self._node = np.zeros(num_tables, np.int64)
        self._seeds = np.zeros(num_tables, np.uint64)
        self._first_row = np.arange(num_tables) * spec.num_seats

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._seeds[tables] = seeds
        self._node[tables] = self._moves.after_chance(np.zeros(len(tables), np.int64), seeds)
        for array in self.view.observation[0].values():
            array[tables] = 0
        self._show()

    def step(self, actions: Actions) -> None:
        playing = ~self.view.over
        before = self._node
        seats = self._tree.seat.take(before)
        moves = actions[0][self._head].ravel().take(self._first_row + seats, mode="clip")
        num_moves = self._moves.child.shape[1]
        after = self._moves.child.ravel().take(before * num_moves + moves, mode="clip")
        illegal = playing & ((after < 0) | (moves < 0) | (moves >= num_moves))
        if illegal.any():
            self._require_legal(self._head, np.arange(self.num_tables), seats, moves, counts=illegal)
        np.copyto(self._node, self._moves.after_chance(after, self._seeds), where=playing)
        self._show()

    def _show(self) -> None:
        view, tree, nodes = self.view, self._tree, self._node
        self._reward.take(nodes, axis=0, out=view.reward, mode="clip")
        self._score.take(nodes, axis=0, out=view.score, mode="clip")
        self._to_act.take(nodes, axis=0, out=view.to_act, mode="clip")
        self._legal.take(nodes, axis=0, out=view.legal[0][self._head], mode="clip")
        seats = tree.seat.take(nodes)
        np.less(seats, 0, out=view.over)
        playing = np.flatnonzero(seats >= 0)
        rows = (self._first_row + seats).take(playing)
        infostates = tree.infostate.take(nodes.take(playing))
        shown = {name: array.take(infostates, axis=0) for name, array in tree.observations.items()}
        for name, array in tree.critic_observations.items():
            shown[name] = array.take(nodes.take(playing), axis=0)
        for name, array in view.observation[0].items():
            array.reshape(-1, *array.shape[2:])[rows] = shown[name]

    def tree_state(self, table: int) -> TreeState:
        path: list[int] = []
        node = int(self._node[table])
        while node > 0:
            path.append(int(self._tree.action[node]))
            node = int(self._tree.parent[node])
        state = self._root
        for action in reversed(path):
            state = state.child(action)
        return state


@dataclass(frozen=True, kw_only=True, eq=False)
class Successors:
    """Successors by action and by chance. Runs of chance nodes are merged: one draw for all cards of a deal."""

    child: IntArray
    """[nodes, actions]: -1 if not legal."""
    deal: IntArray
    """[nodes]: number of the deal that starts at a chance node, -1 elsewhere."""
    depth: IntArray
    last: IntArray
    """[deals]: index of the last outcome in the two arrays below, which hold the outcomes of all deals in order."""
    edges: NDArray[np.float64]
    """Number of the deal plus cumulative probability, per outcome."""
    outcomes: IntArray
    """Node after the deal, per outcome."""

    @property
    def depth_after_root(self) -> int:
        """Depth of the first decision: the number of chance nodes before it."""
        return int(self.depth[self.outcomes[0]]) if self.deal[0] >= 0 else 0

    def after_chance(self, nodes: IntArray, seeds: NDArray[np.uint64]) -> IntArray:
        deals = self.deal[nodes]
        rows = np.flatnonzero(deals >= 0)
        if not len(rows):
            return nodes
        deals = deals[rows]
        # The depth is the number of the draw: it grows along a history, so no draw is used twice.
        draws = deals + uniform(seeds[rows], self.depth[nodes[rows]])
        # Adding the deal's number may round a draw up to the next deal.
        drawn = np.minimum(np.searchsorted(self.edges, draws, side="right"), self.last[deals])
        nodes = nodes.copy()
        nodes[rows] = self.outcomes[drawn]
        return nodes


@cache
def flat_tree(root: TreeState) -> FlatTree:
    return FlatTree.build(root)


@cache
def successors(tree: FlatTree) -> Successors:
    is_chance = tree.seat == CHANCE
    nodes = np.arange(1, len(tree.seat))
    dealt = is_chance[tree.parent[1:]]
    child = np.full((len(tree.seat), tree.legal.shape[1]), -1, np.int64)
    decided = nodes[~dealt]
    child[tree.parent[decided], tree.action[decided]] = decided

    start = np.where(is_chance, np.arange(len(tree.seat)), -1)
    probability = np.ones(len(tree.seat))
    for node in nodes[dealt]:
        start[node] = start[tree.parent[node]]
        probability[node] = tree.chance[node] * probability[tree.parent[node]]
    ends = nodes[dealt & ~is_chance[1:]]
    ends = ends[np.argsort(start[ends], kind="stable")]
    starts, first, deals = np.unique(start[ends], return_index=True, return_inverse=True)
    last = np.append(first, len(ends))[1:] - 1
    edges = deals + np.concatenate([np.cumsum(part) for part in np.split(probability[ends], first[1:])])
    edges[last] = np.arange(len(starts)) + 1.0  # exact, so that no draw falls into the previous deal
    deal = np.full(len(tree.seat), -1, np.int64)
    deal[starts] = np.arange(len(starts))
    return Successors(child=child, deal=deal, depth=tree.depth, last=last, edges=edges, outcomes=ends)

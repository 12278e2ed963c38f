"""Gumbel AlphaZero's search with a network, for many tables at once (Danihelka et al. 2022, "Policy improvement by
planning with Gumbel"). Nodes are rows of arrays, and one simulation is one step of the game and one call of the network
for all tables. Shapes: B tables, N nodes of a tree, A options; node 0 is the root."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ludus.data.search import GumbelSearch
from ludus.data.specs import Choice, GameSpec
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.game import GameBatch, GameSource, HasPositions, allocate_actions
from ludus.games.seat_rows import GameError

Floats = NDArray[np.float32]
Evaluate = Callable[[int, Tree, Tree], tuple[Floats, Floats]]
"""Kind of seat, observations and legal masks of rows -> log-probabilities of all options [rows, A], and values [rows]
in units of reward to the seat that moves."""

NOBODY = -1  # moves where the game has ended
ILLEGAL = np.float32(-1e9)  # log-probability
_MOST_NODES = 1 << 16  # in memory at a time


class Searched(NamedTuple):
    """What a search found, a row per table."""

    action: NDArray[np.int32]
    policy: Floats
    """[B, A]: the improved policy, a softmax over log-probabilities and completed values."""
    value: Floats
    """Of the improved policy, to the seat that moves."""


def require_searchable(source: GameSource) -> None:
    """Raise a GameError that names the reason if a network cannot search the game."""
    spec = source.spec
    reason = _reason(spec)
    if reason is None:
        with closing(source.tables(1)) as tables:
            if not isinstance(tables, HasPositions):
                reason = f"its tables ({type(tables).__name__}) cannot be copied: they have no `positions`"
            else:
                tables.reset(np.array([0]), np.zeros(1, np.uint64))
                if tables.view.to_act.sum() > 1:
                    reason = "seats move at the same time"
    if reason is not None:
        raise GameError(f"{spec.name} cannot be searched with a network: {reason}")


def _reason(spec: GameSpec) -> str | None:
    if spec.num_seats != 2 or spec.num_teams != 2:
        return f"it has {spec.num_seats} seats and {spec.num_teams} teams; a search is for two seats, one each"
    if not spec.zero_sum:
        return "it is not zero-sum"
    if spec.hidden_information is not False:
        unknown = "; if it has none, say hidden_information=False in its spec" * (spec.hidden_information is None)
        return f"it {'may have' if unknown else 'has'} hidden information{unknown}"
    if spec.chance is not False:
        unknown = "; if it has none, say chance=False in its spec" * (spec.chance is None)
        return f"it {'may have' if unknown else 'has'} chance{unknown}"
    for kind in spec.kinds:
        heads = list(kind.action.heads.values())
        if numbers := next(iter(kind.action.boxes), None):
            return f"head {numbers!r} of its {kind.name!r} seats takes real numbers, and a search needs moves to count"
        if len(heads) > 1 or not isinstance(heads[0], Choice):
            return f"a move of its {kind.name!r} seats is more than one choice"
    if len({next(kind.num_options(head) for head in kind.action.heads) for kind in spec.kinds}) > 1:
        return "its seats have different numbers of moves"
    return None


class NetworkSearch:
    """Searches positions of one game with one network."""

    def __init__(self, source: GameSource, settings: GumbelSearch, evaluate: Evaluate) -> None:
        require_searchable(source)
        self._source = source
        self._settings = settings
        self._evaluate = evaluate
        self._boards: dict[int, GameBatch] = {}

    def search(self, game: GameBatch, tables: IntArray, rng: np.random.Generator, *, noise: bool = True) -> Searched:
        """Search where one seat is to move. With `noise`, the action is a draw from the improved policy, as far as the
        simulations allow; without, it is always the one found best."""
        spec, count = game.spec, len(tables)
        num_options = next(spec.kinds[0].num_options(head) for head in spec.kinds[0].action.heads)
        gumbel = rng.gumbel(size=(count, num_options)) if noise else np.zeros((count, num_options))
        at_once = max(1, _MOST_NODES // (self._settings.simulations + 1))
        found = [
            self._search(game, tables[first : first + at_once], gumbel[first : first + at_once].astype(np.float32))
            for first in range(0, count, at_once)
        ]
        return found[0] if len(found) == 1 else Searched(*map(np.concatenate, zip(*found, strict=True)))

    def _search(self, game: GameBatch, tables: IntArray, gumbel: Floats) -> Searched:
        assert isinstance(game, HasPositions)
        count = len(tables)
        # Few different sizes, so that few boards are held and few shapes compiled. Surplus rows repeat the first.
        size = 1 << (count - 1).bit_length() if count <= 64 else -(-count // 64) * 64
        filled = np.zeros(size, np.int64)
        filled[:count] = np.arange(count)
        if size not in self._boards:
            self._boards[size] = self._source.tables(size)
        trees = _Trees(self._boards[size], self._settings, self._evaluate, gumbel[filled])
        trees.plant(game.positions(tables[filled]))
        for simulation in range(self._settings.simulations):
            trees.simulate(simulation)
        found = trees.result()
        return Searched(found.action[:count], found.policy[:count], found.value[:count])


class SearchingBot:
    """A `Bot` that searches with the network of a player."""

    def __init__(self, search: NetworkSearch, *, noise: bool) -> None:
        self._search = search
        self._noise = noise

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        (head,) = game.spec.kinds[game.spec.seats[int(seats[0])]].action.heads
        return {head: self._search.search(game, tables, rng, noise=self._noise).action}


class _Trees:
    """The trees of one search. Values belong to the seat that moves at the node they are kept with."""

    def __init__(self, board: GameBatch, settings: GumbelSearch, evaluate: Evaluate, gumbel: Floats) -> None:
        self._board, self._settings, self._evaluate, self._gumbel = board, settings, evaluate, gumbel
        size, num_options, nodes = *gumbel.shape, settings.simulations + 1
        self._rows = np.arange(size)
        self._actions = allocate_actions(board.spec, size)
        self._log_prior = np.full((size, nodes, num_options), ILLEGAL, np.float32)
        self._value = np.zeros((size, nodes), np.float32)
        self._mover = np.full((size, nodes), NOBODY, np.int64)
        self._reward = np.zeros((size, nodes), np.float32)
        """Of the move that led to a node, to the seat that made it."""
        self._child = np.full((size, nodes, num_options), -1, np.int64)
        self._visits = np.zeros((size, nodes, num_options), np.float32)
        self._total = np.zeros((size, nodes, num_options), np.float32)
        """Sum of the values that visits have found."""
        self._positions: Tree = {}
        """[B, N, ...]"""
        self._scale = np.ones(size, np.float32)
        """Largest value seen, and 1 at least: values are rescaled from -scale to scale into 0 to 1."""
        self._schedule: IntArray = np.zeros((0, 0), np.int64)
        """[simulations, B]: visits that a move of the root must have had to be tried."""

    def plant(self, positions: Tree) -> None:
        """The roots are these positions."""
        board, size = self._board, len(self._rows)
        assert isinstance(board, HasPositions)
        shape = (size, self._settings.simulations + 1)
        self._positions = {name: np.empty((*shape, *a.shape[1:]), a.dtype) for name, a in positions.items()}
        put(self._positions, (self._rows, 0), positions)
        board.set_positions(self._rows, positions)
        self._see(self._rows, 0)
        most = np.minimum((self._log_prior[:, 0] > ILLEGAL).sum(1), self._settings.considered)
        schedules = {number: halving_schedule(number, self._settings.simulations) for number in set(most.tolist())}
        self._schedule = np.array([schedules[number] for number in most.tolist()]).T

    def simulate(self, number: int) -> None:
        """Look at one more position of each tree."""
        rows, board = self._rows, self._board
        assert isinstance(board, HasPositions)
        first = self._root_move(self._schedule[number])
        path, leaf, move = self._descend(first)
        known = self._child[rows, leaf, move]
        new = known < 0
        # Where the path ends at a known position, the board repeats a move of the root, which is ignored.
        leaf, move = np.where(new, leaf, 0), np.where(new, move, first)
        board.set_positions(rows, take(self._positions, (rows, leaf)))
        mover = self._mover[rows, leaf]
        for seat in (0, 1):
            kind, column = board.spec.seats[seat], board.spec.column_of_seat[seat]
            for array in self._actions[kind].values():
                array[:, column] = np.where(mover == seat, move, 0)
        board.step(self._actions)
        node, grown = number + 1, rows[new]
        put(self._positions, (grown, node), board.positions(grown))
        reward = board.view.reward
        self._reward[grown, node] = (reward[grown, mover[new]] - reward[grown, 1 - mover[new]]) / 2
        self._child[grown, leaf[new], move[new]] = node
        self._see(grown, node)
        self._back_up(path, self._value[rows, np.where(new, node, known)])

    def result(self) -> Searched:
        rows = self._rows
        log_prior, visits = self._log_prior[:, 0], self._visits[:, 0]
        completed, logits = self._improved(rows, np.zeros_like(rows))
        most = visits.max(1, keepdims=True)
        action = np.where((visits == most) & (log_prior > ILLEGAL), self._gumbel + logits, -np.inf).argmax(1)
        policy = _softmax(logits)
        value = (policy * np.where(policy > 0, completed, 0)).sum(1)
        return Searched(action.astype(np.int32), policy, value)

    def _see(self, rows: IntArray, node: int) -> None:
        """Note who moves on the board, and what the network thinks of it."""
        view, spec = self._board.view, self._board.spec
        acting = view.to_act[rows]
        if (acting.sum(1) > 1).any():
            raise GameError(f"{spec.name} cannot be searched with a network: seats move at the same time")
        playing = acting.any(1)
        rows, seats = rows[playing], acting[playing].argmax(1)
        self._mover[rows, node] = seats
        for kind, kind_spec in enumerate(spec.kinds):
            of_kind = np.asarray(spec.seats)[seats] == kind
            here = rows[of_kind]
            if not len(here):
                continue
            at = (here, np.asarray(spec.column_of_seat)[seats[of_kind]])
            legal = take(view.legal[kind], at)
            log_prob, value = self._evaluate(kind, take(view.observation[kind], at), legal)
            (head,) = kind_spec.action.heads
            self._log_prior[here, node] = np.where(legal[head], log_prob, ILLEGAL) if head in legal else log_prob
            self._value[here, node] = value
            self._scale[here] = np.maximum(self._scale[here], np.abs(value))

    def _root_move(self, wanted: IntArray) -> IntArray:
        """Sequential halving: the best of the moves that have had `wanted` visits."""
        log_prior, visits = self._log_prior[:, 0], self._visits[:, 0]
        _, logits = self._improved(self._rows, np.zeros_like(self._rows))
        tried = (visits == wanted[:, None]) & (log_prior > ILLEGAL)
        best: IntArray = np.where(tried, self._gumbel + logits, -np.inf).argmax(1)
        return best

    def _descend(self, move: IntArray) -> tuple[list[tuple[IntArray, IntArray, IntArray]], IntArray, IntArray]:
        """Follow the tree from a move of the root to a move that is new, ends the game or is the last one allowed.
        Returns the rows, nodes and moves of each step, and the last node and move of each row."""
        rows, node = self._rows, np.zeros_like(self._rows)
        last_node, last_move = node.copy(), move.copy()
        path = []
        while len(rows):
            path.append((rows, node, move))
            last_node[rows], last_move[rows] = node, move
            if len(path) == self._settings.max_depth:
                break
            child = self._child[rows, node, move]
            goes_on = (child >= 0) & (self._mover[rows, child] != NOBODY)
            rows, node = rows[goes_on], child[goes_on]
            move = self._interior_move(rows, node)
        return path, last_node, last_move

    def _interior_move(self, rows: IntArray, nodes: IntArray) -> IntArray:
        """The move whose share of the visits is furthest below its probability in the improved policy."""
        visits = self._visits[rows, nodes]
        policy = _softmax(self._improved(rows, nodes)[1])
        best: IntArray = (policy - visits / (1 + visits.sum(1, keepdims=True))).argmax(1)
        return best

    def _improved(self, rows: IntArray, nodes: IntArray) -> tuple[Floats, Floats]:
        """Completed values of all moves, and the logits of the improved policy. The value of a move without visits is
        a mix of the network's value and of the values of the moves that have some."""
        log_prior, visits = self._log_prior[rows, nodes], self._visits[rows, nodes]
        value = self._total[rows, nodes] / np.maximum(visits, 1)
        known = np.where(visits > 0, np.exp(log_prior), 0)
        mean = (known * value).sum(1) / np.maximum(known.sum(1), np.float32(1e-30))
        count = visits.sum(1)
        mixed = (self._value[rows, nodes] + count * mean) / (1 + count)
        completed = np.where(visits > 0, value, mixed[:, None])
        weight = (self._settings.c_visit + visits.max(1)) * self._settings.c_scale
        rescaled = (completed / self._scale[rows, None] + 1) / 2
        return completed, log_prior + (weight[:, None] * rescaled).astype(np.float32)

    def _back_up(self, path: list[tuple[IntArray, IntArray, IntArray]], value: Floats) -> None:
        """Add the value of the new nodes to all moves that led there."""
        for rows, node, move in reversed(path):
            child = self._child[rows, node, move]
            same = self._mover[rows, child] == self._mover[rows, node]
            found = self._reward[rows, child] + np.where(same, value[rows], -value[rows])
            self._total[rows, node, move] += found
            self._visits[rows, node, move] += 1
            self._scale[rows] = np.maximum(self._scale[rows], np.abs(found))
            value[rows] = found


@cache
def halving_schedule(considered: int, simulations: int) -> tuple[int, ...]:
    """Per simulation, the number of visits that a move must have had to be tried. The simulations are split evenly over
    log2(considered) rounds; each compares half as many moves as the one before, and two at least."""
    if considered <= 1:
        return tuple(range(simulations))
    rounds = math.ceil(math.log2(considered))
    visits, schedule = [0] * considered, list[int]()
    while len(schedule) < simulations:
        for _ in range(max(1, simulations // (rounds * considered))):
            schedule += visits[:considered]
            visits = [number + 1 for number in visits[:considered]]
        considered = max(2, considered // 2)
    return tuple(schedule[:simulations])


def _softmax(logits: Floats) -> Floats:
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    probabilities: Floats = exponents / exponents.sum(1, keepdims=True)
    return probabilities

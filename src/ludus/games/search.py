"""Search bots for any game of perfect information without chance, through `TreeState`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.trees import IntArray, Tree
from ludus.games.game import GameBatch, HasTrees, Seat

Leaf = Callable[[TreeState, Seat], float]
"""The value of an unfinished position to a seat, between its worst and its best return."""
Playout = Callable[[Any, Random], Sequence[float]]


def level(state: TreeState, seat: Seat) -> float:
    """The constant leaf score 0."""
    return 0.0


@runtime_checkable
class HasRollout(Protocol):
    """A `TreeState` with a fast method for random playouts."""

    def rollout(self, random: Random) -> Sequence[float]:
        """Play random moves to the end; returns per seat."""


class SearchBot(ABC):
    """Plays a uniformly random one of the moves that a search finds best, table by table."""

    @abstractmethod
    def best_actions(self, state: TreeState, random: Random) -> Sequence[int]:
        """The moves that the search finds equally good."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        if not isinstance(game, HasTrees):
            raise TypeError(f"{type(self).__name__} needs a game with tree_state; {game.spec.name} has none")
        random = Random(int(rng.integers(2**63)))
        (head,) = game.spec.kinds[0].action.heads
        chosen = [random.choice(self.best_actions(game.tree_state(int(table)), random)) for table in tables]
        return {head: np.array(chosen, np.int32)}


@dataclass(frozen=True, kw_only=True)
class AlphaBetaBot(SearchBot):
    """Looks `depth` plies ahead, for itself against all others.

    A finished game counts its return, less a thousandth of it per ply (which prefers quick wins and slow losses); an
    unfinished one counts `leaf`. At depth 2 it wins at once if it can and never lets the other seat win next.
    """

    depth: int
    leaf: Leaf = level

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"AlphaBetaBot.depth must be at least 1, got {self.depth}")

    def best_actions(self, state: TreeState, random: Random) -> Sequence[int]:
        best: list[int] = []
        best_value = -math.inf
        for action in state.legal_actions():
            # Just below the best value, so that an equal value is computed exactly instead of cut off.
            floor = math.nextafter(best_value, -math.inf)
            value = self._value(state.child(action), state.seat(), 1, floor, math.inf)
            if value > best_value:
                best, best_value = [action], value
            elif value == best_value:
                best.append(action)
        return best

    def _value(self, state: TreeState, seat: Seat, ply: int, floor: float, ceiling: float) -> float:
        """The value to `seat`: exact between floor and ceiling, else a bound."""
        to_move = state.seat()
        if to_move == OVER:
            return state.returns()[seat] * (1.0 - ply / 1000.0)
        _require_no_chance(to_move, self)
        if ply == self.depth:
            return self.leaf(state, seat)
        mine = to_move == seat
        best = -math.inf if mine else math.inf
        for action in state.legal_actions():
            value = self._value(state.child(action), seat, ply + 1, floor, ceiling)
            if mine:
                best = max(best, value)
                floor = max(floor, best)
            else:
                best = min(best, value)
                ceiling = min(ceiling, best)
            if floor >= ceiling:
                break
        return best


@dataclass(frozen=True, kw_only=True)
class PerfectBot(SearchBot):
    """Searches to the end of the game, for itself against all others, and caches every position.

    Each ply discounts a return by one per cent. Only for games of some thousand positions.
    """

    values: dict[Hashable, dict[Seat, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def best_actions(self, state: TreeState, random: Random) -> Sequence[int]:
        values = {action: self._value(state.child(action), state.seat()) for action in state.legal_actions()}
        best = max(values.values())
        return [action for action, value in values.items() if value == best]

    def _value(self, state: TreeState, seat: Seat) -> float:
        to_move = state.seat()
        if to_move == OVER:
            return state.returns()[seat]
        _require_no_chance(to_move, self)
        known = self.values.setdefault(state.information_state(), {})
        if seat not in known:
            children = [self._value(state.child(action), seat) for action in state.legal_actions()]
            known[seat] = 0.99 * (max(children) if to_move == seat else min(children))
        return known[seat]


class _Node:
    """A position in the tree of one UCT search."""

    __slots__ = ("children", "seat", "state", "total", "untried", "visits")

    def __init__(self, state: TreeState, random: Random) -> None:
        self.state = state
        self.seat = state.seat()
        self.untried = list(state.legal_actions()) if self.seat != OVER else []
        random.shuffle(self.untried)
        self.children: dict[int, _Node] = {}
        self.visits = 0
        self.total = 0.0
        """Sum of returns to the seat that moved here."""


@dataclass(frozen=True, kw_only=True)
class UctBot(SearchBot):
    """Upper confidence bounds applied to trees, with `simulations` playouts per move and a new tree for each move.

    Every child is tried once, in random order; then the child with the highest mean + c * sqrt(ln N / n). A random
    playout scores a new leaf; `c` suits returns in [-1, 1]. The bot plays a move with the most visits.
    """

    simulations: int
    c: float = 1.4

    def __post_init__(self) -> None:
        if self.simulations < 1:
            raise ValueError(f"UctBot.simulations must be at least 1, got {self.simulations}")

    def best_actions(self, state: TreeState, random: Random) -> Sequence[int]:
        root = _Node(state, random)
        playout: Playout = type(state).rollout if isinstance(state, HasRollout) else play_randomly
        for _ in range(self.simulations):
            path = self._descend(root, random)
            leaf = path[-1]
            returns = leaf.state.returns() if leaf.seat == OVER else playout(leaf.state, random)
            root.visits += 1
            for parent, node in pairwise(path):
                node.visits += 1
                node.total += returns[parent.seat]
        most = max(child.visits for child in root.children.values())
        return [action for action, child in root.children.items() if child.visits == most]

    def _descend(self, root: _Node, random: Random) -> list[_Node]:
        """The path from the root to a new node or to an end of the game."""
        node = root
        path = [node]
        while not node.untried and node.children:
            weight = self.c * math.sqrt(math.log(node.visits))
            best_bound = -math.inf
            for child in node.children.values():
                bound = child.total / child.visits + weight / math.sqrt(child.visits)
                if bound > best_bound:
                    node, best_bound = child, bound
            path.append(node)
        if node.untried:
            _require_no_chance(node.seat, self)
            action = node.untried.pop()
            node.children[action] = _Node(node.state.child(action), random)
            path.append(node.children[action])
        return path


def play_randomly(state: TreeState, random: Random) -> Sequence[float]:
    """Play uniformly random moves to the end; returns per seat."""
    while state.seat() != OVER:
        state = state.child(random.choice(state.legal_actions()))
    return state.returns()


def _require_no_chance(seat: Seat, bot: SearchBot) -> None:
    if seat == CHANCE:
        raise ValueError(f"{type(bot).__name__} cannot search a game with chance")

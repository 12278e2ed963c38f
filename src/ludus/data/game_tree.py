"""Game trees as arrays: exact values, best responses and NashConv by vectorised sweeps in sequence form. A seat's
*sequence* is its latest (information state, action) pair. With perfect recall it determines all of the seat's earlier
ones, so sweeps run over information states instead of histories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ludus.data.specs import CRITIC_PREFIX
from ludus.data.trees import IntArray, Tree

CHANCE = -1
OVER = -2


class TreeState(Protocol):
    """One history of a game. Immutable: `child` returns a new state."""

    def seat(self) -> int:
        """The seat to move, CHANCE or OVER."""

    def legal_actions(self) -> Sequence[int]:
        """Actions of the seat to move, ascending."""

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        """(outcome, probability) at a chance node."""

    def child(self, action: int) -> TreeState: ...
    def returns(self) -> Sequence[float]:
        """Total reward per seat, at the end."""

    def information_state(self) -> Hashable:
        """A key of all that the seat to move knows; equal keys mean indistinguishable histories."""

    def observation(self) -> Tree:
        """The observation of the seat to move, as in the game's `TableView` (one row, no leading axes). Arrays for
        critics alone, `critic.NAME`, may differ between histories of one information state."""


Probs = NDArray[np.float64]  # [infostates, actions]: a behavioural policy of all seats

TIE = 1e-12  # values this close count as equal, so that rounding never decides between actions


class LargeTreeError(ValueError):
    """A game tree with more nodes than are walked."""


class ForgetfulSeatError(ValueError):
    """A seat lacks perfect recall: its information states do not determine its own earlier decisions."""


class ExactTree(ABC):
    """What exact exploitability needs of a game: its information states, numbered, and what policies are worth."""

    infostate_seat: IntArray
    legal: NDArray[np.bool_]  # [infostates, actions]

    @property
    @abstractmethod
    def num_seats(self) -> int: ...

    @abstractmethod
    def observe(self, rows: slice) -> Tree:
        """The observations of these information states, by their seats. What only critics see is zero."""

    @abstractmethod
    def values(self, probs: Probs) -> NDArray[np.float64]:
        """[seats]: expected returns when every seat follows `probs`."""

    @abstractmethod
    def best_response(self, seat: int, probs: Probs) -> tuple[float, Probs]:
        """The best value of `seat` against the others, and `probs` with its rows replaced by the best response. Ties,
        and states that the others never reach, take the lowest action."""

    @abstractmethod
    def mixture(self, policies: Iterable[Probs], weights: ArrayLike) -> Probs:
        """The policy equivalent to drawing one of M policies per seat before the game. `weights` is [M], or [seats, M]
        if the seats draw from different distributions."""

    def uniform(self) -> Probs:
        """The uniform policy over legal actions."""
        probs: Probs = self.legal / self.legal.sum(axis=1, keepdims=True)
        return probs

    def nash_conv(self, probs: Probs) -> float:
        """The sum of what each seat could gain by deviating alone; 0 at a Nash equilibrium."""
        best = [self.best_response(seat, probs)[0] for seat in range(self.num_seats)]
        return float(np.sum(best - self.values(probs)))

    def exploitability(self, probs: Probs) -> float:
        """NashConv per seat."""
        return self.nash_conv(probs) / self.num_seats


@dataclass(frozen=True, kw_only=True, eq=False)
class FlatTree(ExactTree):
    """A game tree. Node 0 is the root, nodes are ordered by depth, and children of a node are consecutive."""

    seat: IntArray  # [nodes]: the seat to move, CHANCE or OVER
    parent: IntArray  # [nodes]: -1 at the root
    action: IntArray  # [nodes]: the action or chance outcome that led here, -1 at the root
    depth: IntArray  # [nodes]
    chance: NDArray[np.float64]  # [nodes]: probability of this outcome of a chance node, else 1
    infostate: IntArray  # [nodes]: information state of the seat to move, -1 where there is none
    returns: NDArray[np.float64]  # [nodes, seats]: zero except where the game is over
    sequence: IntArray  # [nodes, seats]: latest infostate * actions + action of the seat; infostates * actions: none
    keys: tuple[Hashable, ...]  # per information state: its `information_state()`
    infostate_seat: IntArray
    infostate_parent: IntArray  # [infostates]: the sequence of its seat that leads to it
    infostate_depth: IntArray  # [infostates]: number of earlier decisions of its seat
    observations: Tree  # per information state: the observation of its seat
    critic_observations: Tree  # per node: what only the critic of the seat to move sees, `critic.NAME`
    legal: NDArray[np.bool_]  # [infostates, actions]

    @classmethod
    def build(cls, root: TreeState, most_nodes: int | None = None) -> FlatTree:
        """Walk the tree once. Raises `ForgetfulSeatError` if a seat lacks perfect recall, and `LargeTreeError` if the
        tree has more nodes than that."""
        walk = _Walk(root, most_nodes)
        legal = walk.legal()
        sequence = walk.sequences(num_actions=legal.shape[1], empty=legal.size)
        infostate_seat = np.array([seat for seat, _ in walk.infostates], np.int64)
        parent, depth = walk.own_history(sequence, infostate_seat, num_actions=legal.shape[1])
        return cls(
            seat=np.array(walk.seat),
            parent=np.array(walk.parent),
            action=np.array(walk.action),
            depth=np.array(walk.depth),
            chance=np.array(walk.chance),
            infostate=np.array(walk.infostate),
            returns=walk.returns(),
            sequence=sequence,
            keys=tuple(key for _, key in walk.infostates),
            infostate_seat=infostate_seat,
            infostate_parent=parent,
            infostate_depth=depth,
            observations={
                name: np.stack([observation[name] for observation in walk.observations])
                for name in walk.observations[0]
            },
            critic_observations=walk.critic_observations(),
            legal=legal,
        )

    @property
    def num_seats(self) -> int:
        return int(self.returns.shape[1])

    def observe(self, rows: slice) -> Tree:
        seen = {name: array[rows] for name, array in self.observations.items()}
        num = len(self.legal[rows])
        return seen | {
            name: np.zeros((num, *array.shape[1:]), array.dtype) for name, array in self.critic_observations.items()
        }

    def values(self, probs: Probs) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self._leaf_reach(self._checked(probs)) @ self._leaf_returns
        return total

    def best_response(self, seat: int, probs: Probs) -> tuple[float, Probs]:
        policy = np.array(self._checked(probs))
        gains = self._leaf_reach(probs, without=seat) * self._leaf_returns[:, seat]
        worth: Probs = np.bincount(self._leaf_sequence[seat], gains, self.legal.size + 1).astype(np.float64)
        action_values = worth[:-1].reshape(self.legal.shape)
        for rows in self._layers[seat]:  # from its last decisions to its first
            values = np.where(self.legal[rows], action_values[rows], -np.inf)
            highest = values.max(axis=1)
            policy[rows] = 0.0
            policy[rows, (values >= highest[:, None] - TIE).argmax(axis=1)] = 1.0
            np.add.at(worth, self.infostate_parent[rows], highest)
        return float(worth[-1]), policy

    def action_values(self, probs: Probs) -> Probs:
        """[infostates, actions]: expected return of the seat to move for each action, if all follow `probs` before and
        after it; 0 in states that the others never lead to."""
        plan = np.append(self.plan(self._checked(probs)).ravel(), 1.0)
        nodes = np.flatnonzero(self.seat >= 0)
        found = np.zeros(self.legal.shape)
        for seat in range(self.num_seats):
            worth = np.bincount(
                self._leaf_sequence[seat],
                self._leaf_reach(probs, without=seat) * self._leaf_returns[:, seat],
                self.legal.size + 1,
            )
            action_values = worth[:-1].reshape(self.legal.shape)
            for rows in self._layers[seat]:  # from its last decisions to its first
                np.add.at(worth, self.infostate_parent[rows], (action_values[rows] * probs[rows]).sum(axis=1))
            own = nodes[self.seat[nodes] == seat]
            reach = self._reach_of_chance[own]
            for other in range(self.num_seats):
                if other != seat:
                    reach = reach * plan[self.sequence[own, other]]
            total = np.bincount(self.infostate[own], reach, len(self.legal))[:, None]
            rows = self.infostate_seat == seat
            np.divide(action_values, total, out=found, where=rows[:, None] & (total > 0.0))
        return found

    def plan(self, probs: Probs) -> Probs:
        """Realisation plan [..., I, A]: probability that a seat plays its sequence up to and including each action."""
        plan = np.array(probs, np.float64)
        flat = plan.reshape(*plan.shape[:-2], -1)
        for rows in self._rows_by_depth[1:]:
            plan[..., rows, :] *= flat[..., self.infostate_parent[rows], None]
        return plan

    def behaviour(self, plan: Probs) -> Probs:
        """The policy that realises a (scaled) plan; uniform in states that the seat's own play never reaches."""
        total = plan.sum(axis=1, keepdims=True)
        policy = self.uniform()
        np.divide(plan, total, out=policy, where=total > 0)
        return policy

    def mixture(self, policies: Iterable[Probs], weights: ArrayLike) -> Probs:
        plans = self.plan(np.stack([self._checked(policy) for policy in policies]))
        shares = np.broadcast_to(np.asarray(weights, np.float64), (self.num_seats, len(plans)))
        return self.behaviour(np.einsum("im,mia->ia", shares[self.infostate_seat], plans))

    @cached_property
    def _leaves(self) -> IntArray:
        return np.flatnonzero(self.seat == OVER)

    @cached_property
    def _leaf_returns(self) -> NDArray[np.float64]:
        return self.returns[self._leaves]

    @cached_property
    def _leaf_sequence(self) -> IntArray:
        """[seats, leaves]"""
        return np.ascontiguousarray(self.sequence[self._leaves].T)

    @cached_property
    def _reach_of_chance(self) -> NDArray[np.float64]:
        """[nodes]: probability of all chance outcomes on the path."""
        reach = self.chance.copy()
        for depth in range(1, int(self.depth[-1]) + 1):
            nodes = np.flatnonzero(self.depth == depth)
            reach[nodes] *= reach[self.parent[nodes]]
        return reach

    @cached_property
    def _leaf_chance(self) -> NDArray[np.float64]:
        """[leaves]: probability of all chance outcomes on the path."""
        return self._reach_of_chance[self._leaves]

    @cached_property
    def _rows_by_depth(self) -> tuple[IntArray, ...]:
        """The information states grouped by `infostate_depth`."""
        depths = range(int(self.infostate_depth.max()) + 1)
        return tuple(np.flatnonzero(self.infostate_depth == depth) for depth in depths)

    @cached_property
    def _layers(self) -> tuple[tuple[IntArray, ...], ...]:
        """Per seat: its information states, the last decisions first."""
        return tuple(
            tuple(rows[self.infostate_seat[rows] == seat] for rows in reversed(self._rows_by_depth))
            for seat in range(self.num_seats)
        )

    def _leaf_reach(self, probs: Probs, without: int | None = None) -> NDArray[np.float64]:
        """[leaves]: probability of each leaf, leaving out the decisions of one seat."""
        plan = np.append(self.plan(probs).ravel(), 1.0)
        reach = self._leaf_chance.copy()
        for seat in range(self.num_seats):
            if seat != without:
                reach *= plan[self._leaf_sequence[seat]]
        return reach

    def _checked(self, probs: Probs) -> Probs:
        if probs.shape != self.legal.shape:
            raise ValueError(f"a policy for this tree has shape {self.legal.shape}, got {probs.shape}")
        wrong = (np.abs(probs.sum(axis=1) - 1.0) > 1e-4) | ((probs != 0.0) & ~self.legal).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"not probabilities of the legal actions {np.flatnonzero(self.legal[row]).tolist()} "
                f"at information state {self.keys[row]!r}: {probs[row].tolist()}"
            )
        return probs


class _Walk:
    """One pass over the histories, breadth first, into lists."""

    def __init__(self, root: TreeState, most_nodes: int | None = None) -> None:
        self.seat: list[int] = []
        self.parent, self.action, self.depth, self.chance = [-1], [-1], [0], [1.0]
        self.infostate: list[int] = []
        self.infostates: dict[tuple[int, Hashable], int] = {}
        self.observations: list[Tree] = []
        self._critic: dict[int, Tree] = {}
        self._actions: list[tuple[int, ...]] = []
        self._returns: dict[int, tuple[float, ...]] = {}
        states = [root]
        for node, state in enumerate(states):  # grows while it runs
            seat = state.seat()
            self.seat.append(seat)
            self.infostate.append(self._see(seat, state, node) if seat >= 0 else -1)
            if seat == OVER:
                self._returns[node] = tuple(state.returns())
                continue
            edges = state.chance_outcomes() if seat == CHANCE else [(a, 1.0) for a in state.legal_actions()]
            for action, probability in edges:
                states.append(state.child(action))
                self.parent.append(node)
                self.action.append(action)
                self.depth.append(self.depth[node] + 1)
                self.chance.append(probability)
            if most_nodes is not None and len(states) > most_nodes:
                raise LargeTreeError(f"the game tree has more than {most_nodes:,} nodes")

    def _see(self, seat: int, state: TreeState, node: int) -> int:
        """The number of the information state; a new one is recorded."""
        key = state.information_state()
        number = self.infostates.setdefault((seat, key), len(self.infostates))
        actions = tuple(state.legal_actions())
        is_new = number == len(self._actions)
        if is_new or self._critic:
            observation = state.observation()
            if hidden := {name: array for name, array in observation.items() if name.startswith(CRITIC_PREFIX)}:
                self._critic[node] = hidden
        if is_new:
            self._actions.append(actions)
            self.observations.append({name: array for name, array in observation.items() if name not in hidden})
        elif self._actions[number] != actions:
            raise ValueError(f"seat {seat} may do {self._actions[number]} or {actions} at information state {key!r}")
        return number

    def critic_observations(self) -> Tree:
        """[nodes, ...]: zeros where no seat moves."""
        shapes = next(iter(self._critic.values()), {})
        found = {name: np.zeros((len(self.seat), *array.shape), array.dtype) for name, array in shapes.items()}
        for node, hidden in self._critic.items():
            for name, array in hidden.items():
                found[name][node] = array
        return found

    def legal(self) -> NDArray[np.bool_]:
        legal = np.zeros((len(self._actions), 1 + max(map(max, self._actions))), np.bool_)
        for number, actions in enumerate(self._actions):
            legal[number, list(actions)] = True
        return legal

    def returns(self) -> NDArray[np.float64]:
        table = np.zeros((len(self.seat), len(next(iter(self._returns.values())))))
        for node, returns in self._returns.items():
            table[node] = returns
        return table

    def sequences(self, *, num_actions: int, empty: int) -> IntArray:
        num_seats = len(next(iter(self._returns.values())))
        table = np.full((len(self.seat), num_seats), empty, np.int64)
        for node in range(1, len(self.seat)):
            parent = self.parent[node]
            table[node] = table[parent]
            if self.seat[parent] >= 0:
                table[node, self.seat[parent]] = self.infostate[parent] * num_actions + self.action[node]
        return table

    def own_history(
        self, sequence: IntArray, infostate_seat: IntArray, *, num_actions: int
    ) -> tuple[IntArray, IntArray]:
        """Per information state: the sequence that leads to it and its number of decisions."""
        num_infostates = len(self.infostates)
        keys = list(self.infostates)
        parent = np.full(num_infostates, -1, np.int64)
        depth = np.zeros(num_infostates, np.int64)
        for node, number in enumerate(self.infostate):
            if number < 0:
                continue
            came_by = sequence[node, infostate_seat[number]]
            if parent[number] < 0:
                parent[number] = came_by
                before = came_by // num_actions
                depth[number] = depth[before] + 1 if before < num_infostates else 0
            elif parent[number] != came_by:
                seat, key = keys[number]
                raise ForgetfulSeatError(f"seat {seat} forgets its own decisions at information state {key!r}")
        return parent, depth

"""Gumbel AlphaZero's search on a device: that of `games/network_search.py`, with fixed shapes. Nodes are rows of
tensors, and one simulation is one step of the game and one call of the network for all tables. Shapes: R rows, one per
table; N nodes of a tree; A options. Node 0 is the root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ludus.data.search import GumbelSearch
from ludus.games.device.tensor_game import TensorGame, TensorState, TensorStep, select
from ludus.games.network_search import ILLEGAL, NOBODY, halving_schedule

Evaluate = Callable[[TensorState, Tensor, Any], tuple[Tensor, Tensor]]
"""State, the seat of each row and the weights of the groups -> log-probabilities of all options [R, A], and values [R]
to that seat."""
_ILLEGAL = float(ILLEGAL)
_LEAST_PROBABILITY = 1e-6


class SearchedRows(NamedTuple):
    """What a search found, a row per table."""

    action: Tensor
    policy: Tensor
    """[R, A]: the improved policy."""
    value: Tensor
    """Of the improved policy, to the seat that moves."""
    log_prob: Tensor
    """Of the action in the improved policy."""


class _Seen(NamedTuple):
    """What the network thinks of a node of each tree."""

    log_prior: Tensor
    value: Tensor
    mover: Tensor
    """The seat that moves, `NOBODY` where the game has ended; values belong to it."""


class _Trees(NamedTuple):
    """The trees of one search. They are written in place."""

    positions: TensorState
    """[N, R, ...]"""
    log_prior: Tensor
    value: Tensor
    mover: Tensor
    reward: Tensor
    """[N, R]: of the move that led to a node, to the seat that made it."""
    child: Tensor
    """[N, R, A]; -1: not yet."""
    visits: Tensor
    total: Tensor
    """[N, R, A]: sum of the values that visits have found."""


class TensorSearch:
    """Searches the positions of all tables, each with the weights of the side that moves there."""

    def __init__(
        self,
        game: TensorGame,
        settings: GumbelSearch,
        rows: int,
        evaluate: Evaluate,
        device: torch.device,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]],
        step: Callable[..., TensorStep] | None = None,
    ) -> None:
        """`step`: called in place of the game's own, which may not be one that can be compiled."""
        self._game, self._settings, self._evaluate = game, settings, evaluate
        self._step_game = step or game.step
        self._rows = torch.arange(rows, device=device)
        numbers = range(game.num_options + 1)
        schedules = [halving_schedule(min(number, settings.considered), settings.simulations) for number in numbers]
        self._schedule = torch.tensor(schedules, dtype=torch.float32, device=device)
        """[legal moves, simulations]: visits that a move of the root must have had to be tried."""
        self._look, self._choose, self._descend, self._grow, self._found, self._result = (
            compiled(part)
            for part in (self._seen, self._root_move, self._next, self._grown, self._backed_up, self._searched)
        )

    def search(self, state: TensorState, uniforms: Tensor, weights: Any) -> SearchedRows:
        """`uniforms` [R, A]: random numbers for the noise at the root, by which the action is a draw from the improved
        policy as far as the simulations allow."""
        simulations, deepest, rows = self._settings.simulations, self._settings.max_depth, self._rows
        gumbel = -torch.log(-torch.log(uniforms.clamp(1e-20, 1.0 - 1e-7)))
        root: _Seen = self._look(state, torch.zeros_like(rows, dtype=torch.bool), weights)
        trees = self._planted(state, root)
        wanted = self._schedule.index_select(0, (root.log_prior > _ILLEGAL).sum(1))
        scale = root.value.abs().clamp(min=1.0)
        for simulation in range(simulations):
            node = torch.zeros_like(rows)
            move = self._choose(trees, scale, gumbel, wanted[:, simulation])
            first, active = move, torch.ones_like(rows, dtype=torch.bool)
            path = [(node, move, active)]
            longest = simulation if deepest is None else min(simulation, deepest - 1)
            for _ in range(longest):  # a path through the nodes so far is no longer
                node, move, active = self._descend(trees, scale, node, move, active)
                path.append((node, move, active))
            new, known, place, after, over, reward = self._grow(trees, node, move, first)
            seen: _Seen = self._look(after, over, weights)
            number = simulation + 1
            for name, tensor in trees.positions.items():
                tensor[number].copy_(after[name])
            trees.log_prior[number].copy_(seen.log_prior)
            trees.value[number].copy_(seen.value)
            trees.mover[number].copy_(seen.mover)
            trees.reward[number].copy_(reward)
            children = trees.child.view(-1)
            children.scatter_(0, place, torch.where(new, number, children.gather(0, place)))
            scale = torch.maximum(scale, torch.where(new, seen.value.abs(), 0.0))
            value = torch.where(new, seen.value, known)
            steps = []
            for step in reversed(path):
                place, found, visit, value, scale = self._found(trees, scale, value, *step)
                steps.append((place, found, visit))
            place, found, visit = map(torch.cat, zip(*steps, strict=True))
            trees.total.view(-1).scatter_add_(0, place, found)
            trees.visits.view(-1).scatter_add_(0, place, visit)
        return SearchedRows(*self._result(trees, scale, gumbel))

    def _planted(self, state: TensorState, root: _Seen) -> _Trees:
        nodes, (rows, options) = self._settings.simulations + 1, root.log_prior.shape
        positions = {name: one.new_empty(nodes, *one.shape) for name, one in state.items()}
        for name, tensor in state.items():
            positions[name][0].copy_(tensor)
        log_prior = root.log_prior.new_full((nodes, rows, options), _ILLEGAL)
        log_prior[0].copy_(root.log_prior)
        value = root.value.new_zeros(nodes, rows)
        value[0].copy_(root.value)
        mover = root.mover.new_full((nodes, rows), NOBODY)
        mover[0].copy_(root.mover)
        return _Trees(
            positions=positions,
            log_prior=log_prior,
            value=value,
            mover=mover,
            reward=torch.zeros_like(value),
            child=torch.full_like(log_prior, -1, dtype=torch.int64),
            visits=torch.zeros_like(log_prior),
            total=torch.zeros_like(log_prior),
        )

    # --- what is compiled ---

    def _seen(self, state: TensorState, over: Tensor, weights: Any) -> _Seen:
        """What the network thinks of these positions, where they are not `over`."""
        seat = self._game.to_act(state).int().argmax(1)
        log_prob, value = self._evaluate(state, seat, weights)
        legal = self._game.masks(state, seat)[self._game.head]
        return _Seen(
            torch.where(legal, log_prob, _ILLEGAL), torch.where(over, 0.0, value), torch.where(over, NOBODY, seat)
        )

    def _root_move(self, trees: _Trees, scale: Tensor, gumbel: Tensor, wanted: Tensor) -> Tensor:
        """Sequential halving: the best of the moves that have had `wanted` visits."""
        _, logits = self._improved(trees, scale, torch.zeros_like(self._rows))
        tried = (trees.visits[0] == wanted.unsqueeze(1)) & (trees.log_prior[0] > _ILLEGAL)
        return torch.where(tried, gumbel + logits, -torch.inf).argmax(1)

    def _next(
        self, trees: _Trees, scale: Tensor, node: Tensor, move: Tensor, active: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step down the tree, where it does not end here: to the move whose share of the visits is furthest below
        its probability in the improved policy."""
        child = self._child_of(trees, node, move)
        inner = child.clamp(min=0)
        goes_on = active & (child >= 0) & (trees.mover.view(-1)[self._at(inner)] != NOBODY)
        node = torch.where(goes_on, inner, node)
        visits = trees.visits.flatten(0, 1)[self._at(node)]
        policy = self._improved(trees, scale, node)[1].softmax(1)
        best = (policy - visits / (1 + visits.sum(1, keepdim=True))).argmax(1)
        return node, torch.where(goes_on, best, move), goes_on

    def _grown(
        self, trees: _Trees, node: Tensor, move: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, TensorState, Tensor, Tensor]:
        """Play the last move of each path. Returns which of them are new, the values of known positions, the place of
        the child, the position, whether the game is over, and the reward of the mover."""
        child = self._child_of(trees, node, move)
        new, known = child < 0, trees.value.view(-1)[self._at(child.clamp(min=0))]
        # Where the path ends at a known position, a move of the root is repeated, which is ignored.
        node, move = torch.where(new, node, 0), torch.where(new, move, first)
        at = self._at(node)
        state = {name: tensor.flatten(0, 1)[at] for name, tensor in trees.positions.items()}
        mover = trees.mover.view(-1)[at].clamp(min=0)
        actions = {self._game.head: move.unsqueeze(1).expand(-1, 2)}
        draws = torch.zeros(len(move), self._game.step_draws, device=move.device)
        played = self._step_game(state, self._game.given(actions), draws)
        own, other = (played.reward.gather(1, seat.unsqueeze(1)).squeeze(1) for seat in (mover, 1 - mover))
        roots = {name: tensor[0] for name, tensor in trees.positions.items()}
        after = select(played.over, roots, played.state)  # what a game returns after its end is not to be read
        return new, known, at * trees.child.shape[2] + move, after, played.over, (own - other) / 2

    def _backed_up(
        self, trees: _Trees, scale: Tensor, value: Tensor, node: Tensor, move: Tensor, active: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """One step up: the place of the move, what to add to its total and its visits, and what it was worth to the
        seat that made it."""
        at = self._at(node)
        child = self._at(self._child_of(trees, node, move).clamp(min=0))
        same = trees.mover.view(-1)[child] == trees.mover.view(-1)[at]
        found = trees.reward.view(-1)[child] + torch.where(same, value, -value)
        value = torch.where(active, found, value)
        scale = torch.maximum(scale, torch.where(active, found.abs(), 0.0))
        place = at * trees.child.shape[2] + move
        return place, torch.where(active, found, 0.0), active.to(found.dtype), value, scale

    def _searched(self, trees: _Trees, scale: Tensor, gumbel: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_prior, visits = trees.log_prior[0], trees.visits[0]
        completed, logits = self._improved(trees, scale, torch.zeros_like(self._rows))
        most = visits.amax(1, keepdim=True)
        tried = (visits == most) & (log_prior > _ILLEGAL)
        action = torch.where(tried, gumbel + logits, -torch.inf).argmax(1)
        policy = logits.softmax(1)
        chosen = policy.gather(1, action.unsqueeze(1)).squeeze(1)
        value = (policy * torch.where(policy > 0, completed, 0.0)).sum(1)
        return action, policy, value, chosen.clamp(min=_LEAST_PROBABILITY).log()

    def _improved(self, trees: _Trees, scale: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """Completed values of all moves, and the logits of the improved policy, as in `network_search`."""
        at = self._at(node)
        log_prior, visits, total = (one.flatten(0, 1)[at] for one in (trees.log_prior, trees.visits, trees.total))
        value = total / visits.clamp(min=1.0)
        known = torch.where(visits > 0, log_prior.exp(), 0.0)
        mean = (known * value).sum(1) / known.sum(1).clamp(min=1e-30)
        count = visits.sum(1)
        mixed = (trees.value.view(-1)[at] + count * mean) / (1 + count)
        completed = torch.where(visits > 0, value, mixed.unsqueeze(1))
        weight = (self._settings.c_visit + visits.amax(1)) * self._settings.c_scale
        rescaled = (completed / scale.unsqueeze(1) + 1) / 2
        return completed, log_prior + weight.unsqueeze(1) * rescaled

    def _at(self, node: Tensor) -> Tensor:
        """The number of a node of each tree among all rows of all nodes."""
        return node * len(self._rows) + self._rows

    def _child_of(self, trees: _Trees, node: Tensor, move: Tensor) -> Tensor:
        return trees.child.view(-1)[self._at(node) * trees.child.shape[2] + move]

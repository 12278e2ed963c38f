"""Inference in one process: a dense call for a learning player, a stacked call for pinned players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from ludus.data.specs import ArraySpec
from ludus.data.trees import Array, IntArray, Tree, take
from ludus.games.game import Bot
from ludus.models.graphed_acting import GraphedActing
from ludus.models.network_policy import NetworkPolicy, stack_policies
from ludus.models.policy import Acted, Policy, memory_columns, replace_weights, weights_of
from ludus.workers.player_cache import Players, SeatedPlayer


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one player, side by side."""

    player: str
    start: int
    stop: int
    want_value: bool
    """Some of them are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingRows:
    """Rows of the seats of one kind that must act now, grouped by player."""

    kind: int
    groups: tuple[Group, ...]
    observation: Tree
    legal: Tree
    state: Tree
    """Memory before the decision."""
    uniforms: Array
    """float32 [rows, draws]: all the chance there is."""

    def first(self, groups: tuple[Group, ...]) -> ActingRows:
        """The rows of these groups, which are the first ones, without a copy."""
        used = slice(0, groups[-1].stop)
        return ActingRows(
            kind=self.kind,
            groups=groups,
            observation=take(self.observation, used),
            legal=take(self.legal, used),
            state=take(self.state, used),
            uniforms=self.uniforms[used],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """Decisions, row by row."""

    acted: Acted
    version: IntArray
    """[rows]: the step of the weights that decided."""
    search_policy: Array | None = None
    """[rows, options]: the improved policy, if a search decided."""

    def at(self, rows: slice) -> InferenceResult:
        """Some of the rows, without a copy."""
        return InferenceResult(acted=_of_rows(self.acted, rows), version=self.version[rows])


class Inference(Protocol):
    """Runs the policies for an actor, in its process or in another."""

    def bot(self, player: str) -> Bot | None:
        """The bot of this name; None if the player has a policy."""

    def num_draws(self, kind: int) -> int:
        """Uniform numbers that one row uses up."""

    def refresh(self) -> None:
        """Take newer weights, if there are any: called before every step of the tables."""

    def act_all(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        """Decide for all rows, with at most one request for each kind of seat. The answers hold until the next call."""

    def model_name(self, player: str) -> str:
        """The id of the weights that a player decides with now; "" for a bot."""


class InlineInference:
    """An `Inference` from players in memory."""

    def __init__(
        self, players: Players, draws: Sequence[int], memory: Sequence[Mapping[str, ArraySpec]] | None = None
    ) -> None:
        """Per kind of seat, `draws`: the uniform numbers that one row has, and `memory`: the columns of its state if
        the networks of players differ (`joint_memory`)."""
        self._players = players
        self._draws = draws
        self._memory = memory
        self._stacks: dict[tuple[int, str], PolicyStack] = {}
        self._graphs = GraphedActing()

    def bot(self, player: str) -> Bot | None:
        return self._players.bot(player)

    def num_draws(self, kind: int) -> int:
        return self._draws[kind]

    def refresh(self) -> None:
        self._players.refresh()

    def model_name(self, player: str) -> str:
        return self._players.model_name(player)

    def policies_of(self, player: str) -> tuple[Policy, ...]:
        """Its policies at this moment, one per kind of seat."""
        return self._players.get(player).policies

    def act_all(self, requests: Sequence[ActingRows]) -> Sequence[InferenceResult]:
        return [self.act(rows) for rows in requests]

    def act(self, rows: ActingRows) -> InferenceResult:
        if len(rows.groups) == 1:
            return self._alone(rows, rows.groups[0])
        together: dict[str, list[Group]] = {}
        alone: list[Group] = []
        for group in rows.groups:
            key = None if group.want_value else self._stack_key(group.player, rows.kind)
            if key is None:
                alone.append(group)
            else:
                together.setdefault(key, []).append(group)
        answers: list[tuple[slice | IntArray, InferenceResult]] = []
        for key, groups in together.items():
            if len(groups) == 1:
                alone += groups
            else:
                answers.append((_where(groups), self._together(rows, key, groups)))
        answers += [(slice(group.start, group.stop), self._alone(rows, group)) for group in alone]
        return _joined(answers, rows.groups[-1].stop)

    def _stack_key(self, player: str, kind: int) -> str | None:
        """None for a player that acts alone: convolutions are slow in a stack, and a graph makes a call cheap."""
        seated = self._players.get(player)
        if seated.convolves and self._graphs.covers(seated.policies[kind]):
            return None
        return seated.stack_key(kind)

    def _alone(self, rows: ActingRows, group: Group) -> InferenceResult:
        seated = self._players.get(group.player)
        count = group.stop - group.start
        asked = count if self._graphs.covers(seated.policies[rows.kind]) else seated.num_rows(count)
        here: slice | IntArray = slice(group.start, group.stop)
        if asked > count:
            here = _filled(group, asked)
        acted = self._act(seated.policies[rows.kind], rows, here, greedy=seated.greedy, want_value=group.want_value)
        if asked > count:
            acted = _of_rows(acted, slice(count))
        return InferenceResult(acted=acted, version=np.full(count, seated.step, np.int64))

    def _together(self, rows: ActingRows, key: str, groups: Sequence[Group]) -> InferenceResult:
        """One call for several models. Each gets as many rows as the longest."""
        seated = [self._players.get(group.player) for group in groups]
        stack = self._stacks.setdefault((rows.kind, key), PolicyStack())
        indices = stack.seat([(group.player, one) for group, one in zip(groups, seated, strict=True)], rows.kind)
        counts = [group.stop - group.start for group in groups]
        longest = seated[0].num_rows(max(counts))
        filled = np.full((stack.size, longest), groups[0].start)
        for index, group in zip(indices, groups, strict=True):
            filled[index] = _filled(group, longest)
        acted = self._act(stack.policy, rows, filled, greedy=seated[0].greedy, want_value=False)
        at = (np.repeat(indices, counts), np.concatenate([np.arange(count) for count in counts]))
        return InferenceResult(acted=_of_rows(acted, at), version=np.repeat([one.step for one in seated], counts))

    def _act(self, policy: Policy, rows: ActingRows, here: slice | IntArray, **how: bool) -> Acted:
        """Decide on these rows, which may be shared with players of other networks."""
        state, uniforms = take(rows.state, here), rows.uniforms[here]
        if uniforms.shape[-1] > policy.num_draws:
            uniforms = np.ascontiguousarray(uniforms[..., : policy.num_draws])
        joint = None if self._memory is None else self._memory[rows.kind]
        if joint is not None and joint != policy.state_arrays:
            columns = memory_columns(policy.state_arrays, joint)
            state = {name: state[column] for name, column in columns.items()}
        observation, legal = take(rows.observation, here), take(rows.legal, here)
        acted = self._act_on_finite(policy, observation, legal, state, uniforms, **how)
        if joint is not None and joint != policy.state_arrays:
            leading = acted.value.shape
            after = {column: np.zeros((*leading, *spec.shape), spec.dtype) for column, spec in joint.items()}
            acted = replace(acted, state=after | {columns[name]: array for name, array in acted.state.items()})
        return acted

    def _act_on_finite(
        self, policy: Policy, observation: Tree, legal: Tree, state: Tree, uniforms: Array, **how: bool
    ) -> Acted:
        """`policy.act`, with 0 where a game shows NaN or infinity. The learner refuses such a trajectory."""
        try:
            return self._graphs.act(policy, observation, legal, state, uniforms, **how)
        except ValueError:
            if all(np.isfinite(array).all() for array in observation.values()):
                raise
            finite = {n: np.nan_to_num(a, posinf=0.0, neginf=0.0) for n, a in observation.items()}
            return policy.act(finite, legal, state, uniforms, **how)


class PolicyStack:
    """Pinned players of one architecture as one policy. A player that left keeps its index until another needs it."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._policy: NetworkPolicy | None = None

    @property
    def policy(self) -> NetworkPolicy:
        assert self._policy is not None
        return self._policy

    @property
    def size(self) -> int:
        return len(self._index)

    def seat(self, players: Sequence[tuple[str, SeatedPlayer]], kind: int) -> list[int]:
        """Put these players into the stack; returns the index of each."""
        wanted = {player: seated.policies[kind] for player, seated in players}
        new = [player for player in wanted if player not in self._index]
        gone = [player for player in self._index if player not in wanted]
        if len(new) > len(gone) or len(gone) > len(wanted):
            self._policy = stack_policies(list(wanted.values()))
            self._index = {player: index for index, player in enumerate(wanted)}
        else:
            for player, other in zip(new, gone, strict=False):
                index = self._index.pop(other)
                replace_weights(self.policy, weights_of(wanted[player]), model=index)
                self._index[player] = index
        return [self._index[player] for player in wanted]


def _filled(group: Group, num_rows: int) -> IntArray:
    """Its rows. Those that are missing are copies of a real one, since no other is sure to have a legal action."""
    return group.start + np.minimum(np.arange(num_rows), group.stop - group.start - 1)


def _of_rows(acted: Acted, rows: slice | tuple[IntArray, IntArray]) -> Acted:
    return Acted(
        action=take(acted.action, rows),
        log_prob=acted.log_prob[rows],
        value=acted.value[rows],
        state=take(acted.state, rows),
    )


def _where(groups: Sequence[Group]) -> slice | IntArray:
    """The rows of these groups; a slice where they lie side by side, which copies nothing."""
    if all(before.stop == after.start for before, after in pairwise(groups)):
        return slice(groups[0].start, groups[-1].stop)
    return np.concatenate([np.arange(group.start, group.stop) for group in groups])


def _joined(answers: Sequence[tuple[slice | IntArray, InferenceResult]], num_rows: int) -> InferenceResult:
    """One answer from those for parts of the rows."""
    first = answers[0][1].acted

    def joined(arrays: Sequence[Array]) -> Array:
        whole = np.empty((num_rows, *arrays[0].shape[1:]), arrays[0].dtype)
        for (where, _), array in zip(answers, arrays, strict=True):
            whole[where] = array
        return whole

    return InferenceResult(
        acted=Acted(
            action={name: joined([part.acted.action[name] for _, part in answers]) for name in first.action},
            log_prob=joined([part.acted.log_prob for _, part in answers]),
            value=joined([part.acted.value for _, part in answers]),
            state={name: joined([part.acted.state[name] for _, part in answers]) for name in first.state},
        ),
        version=joined([part.version for _, part in answers]),
    )

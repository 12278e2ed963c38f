"""The check of an exported file: it must decide as the player of the run does, on random and on played observations,
with memory that is carried along and reset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ludus.data.specs import CRITIC_PREFIX, Box, Entities, SeatKind, length_name
from ludus.data.trees import Array, Tree, allocate, put, take
from ludus.games.exported import GREEDY, ExportedPolicy
from ludus.games.game import GameSource, allocate_actions
from ludus.models.module_policy import ModulePolicy
from ludus.models.onnx_graph import PolicyGraph
from ludus.models.policy import Acted, Policy
from ludus.store.files import StoreError

TOLERANCE = 1e-5
"""Largest difference of a number in one decision, relative for numbers above 1. Also the probability by which two draws
may differ."""
MOST_DRIFT = 1e-3
"""Largest difference of memories that each side has carried along by itself: some networks amplify rounding."""
BATCH_SIZES = (1, 7, 32)
STEPS = 50
"""Decisions that memory is carried over, and steps of the games that are played."""
STEPS_WITHOUT_MEMORY = 10
STEPS_AFTER_RESET = 5

_ADVICE = ": a module must not depend on the values of tensors in Python (if, item) or on the number of rows (len)"


class ParityError(StoreError):
    """An exported file that decides in another way than the player."""


@dataclass
class Parity:
    """What the check has found, by output of the file."""

    largest: dict[str, float] = field(default_factory=dict)
    """Output -> largest difference in one decision. A choice differs by 0 or by 1, a number of a `Box` by a share of
    its range. The log-density of a `Box` is not compared: the last digit of a number moves it where it is steep."""
    drift: dict[str, float] = field(default_factory=dict)
    """Memory -> largest difference when each side goes on with its own memory."""
    rows: int = 0
    """Decisions that were compared."""
    ties: int = 0
    """Decisions that differ by no more than rounding: two options were equally probable, or the uniform number lay on
    the border between them."""
    tolerance: float = TOLERANCE
    advice: str = ""
    """What to look for in a network of the user's own."""

    @property
    def worst(self) -> float:
        return max(self.largest.values(), default=0.0)

    def note(self, output: str, difference: float) -> None:
        self.largest[output] = max(self.largest.get(output, 0.0), difference)

    def require_equal(self, file: str) -> None:
        """Raise `ParityError` with the output that differs most."""
        wrong = {name: found for name, found in self.largest.items() if not found <= self.tolerance}
        if wrong:
            output = max(wrong, key=wrong.__getitem__)
            raise ParityError(
                f"{file} does not decide as the player does: output {output!r} differs by {wrong[output]:.3g}, more "
                f"than {self.tolerance:g}, in {self.rows} decisions{self.advice}"
            )
        for output, found in self.drift.items():
            if not found <= MOST_DRIFT:
                raise ParityError(
                    f"{file} does not remember as the player does: output {output!r} differs by {found:.3g} after "
                    f"{STEPS} decisions, more than {MOST_DRIFT:g}"
                )

    def to_dict(self) -> dict[str, Any]:
        found = {
            "tolerance": self.tolerance,
            "decisions": self.rows,
            "ties": self.ties,
            "largest_difference": self.largest,
        }
        return found | ({"drift_of_memory": self.drift} if self.drift else {})


def check_parity(
    graphs: Sequence[PolicyGraph], files: Sequence[ExportedPolicy], game: GameSource | None, *, seed: int = 0
) -> Parity:
    """Compare the files of a player with its policies, one of each for every kind of seat of the game. Without a game,
    on random observations alone."""
    own = any(isinstance(graph.policy, ModulePolicy) for graph in graphs)
    parity = Parity(advice=_ADVICE if own else "")
    rng = np.random.default_rng(seed)
    pairs = [_Pair(graph, file, parity, rng) for graph, file in zip(graphs, files, strict=True)]
    for rows in BATCH_SIZES:
        for pair in pairs:
            _compare_random(pair, rows)
        if game is not None:
            _compare_played(pairs, game, rows, rng)
    return parity


class _Pair:
    """A policy and its file, asked the same questions."""

    def __init__(self, graph: PolicyGraph, file: ExportedPolicy, parity: Parity, rng: np.random.Generator) -> None:
        self.policy: Policy = graph.policy
        self.file = file
        self._graph = graph
        self._parity = parity
        self._rng = rng
        heads = self.policy.kind.action.heads
        self._boxes = {name: head for name, head in heads.items() if isinstance(head, Box)}
        self._choices = {name: place for place, name in enumerate(heads) if name not in self._boxes}

    def compare(self, observation: Tree, legal: Tree, states: tuple[Tree, Tree]) -> tuple[Tree, tuple[Tree, Tree]]:
        """Ask both. `states` is the memory that each has carried along; returns the actions of the policy and the
        memory of each after them."""
        own, carried = states
        rows = len(next(iter(observation.values())))
        uniforms = self._rng.random((rows, self.policy.num_draws), np.float32)
        acted = self._asked(observation, legal, own, uniforms, greedy=False)
        self._asked(observation, legal, own, uniforms, greedy=True)
        self._parity.rows += 2 * rows
        if not own:
            return acted.action, states
        found = self.file.run(observation, legal, carried, uniforms)
        after = {name: found[f"next_memory.{name}"] for name in own}
        for name, array in acted.state.items():
            drift = self._parity.drift
            drift[f"next_memory.{name}"] = max(drift.get(f"next_memory.{name}", 0.0), _difference(array, after[name]))
        return acted.action, (acted.state, after)

    def _asked(self, observation: Tree, legal: Tree, state: Tree, uniforms: Array, *, greedy: bool) -> Acted:
        """Compare one decision of both, from the same memory."""

        def ask(rows: Any, draws: Array) -> Acted:
            seen, masks, memory = (
                {name: np.ascontiguousarray(array[rows]) for name, array in tree.items()}
                for tree in (observation, legal, state)
            )
            return self.policy.act(seen, masks, memory, np.ascontiguousarray(draws[rows]), greedy=greedy)

        acted = ask(slice(None), uniforms)
        given = np.full_like(uniforms, GREEDY) if greedy else uniforms
        found = self.file.run(observation, legal, state, given)
        same = np.ones(len(uniforms), bool)
        for head in self._choices:
            action = acted.action[head]
            same &= (found[f"action.{head}"] == action).reshape(len(action), -1).all(1)
        for row in np.flatnonzero(~same).tolist():
            near = (
                self._first_difference_is_small(acted, found, row)
                if greedy
                else any(
                    self._same_choices(
                        ask([row], (uniforms + shift).clip(0.0, 1.0 - 2.0**-24).astype(np.float32)), found, row
                    )
                    for shift in (TOLERANCE, -TOLERANCE)
                )
            )
            self._parity.ties += near
            for head in self._choices:
                if not near and not np.array_equal(found[f"action.{head}"][row], acted.action[head][row]):
                    self._parity.note(f"action.{head}", 1.0)
        for head in self._choices:
            self._parity.note(f"action.{head}", 0.0)
        for head, box in self._boxes.items():
            low, high = (np.array(bound) for bound in box.bounds)
            away = np.abs(found[f"action.{head}"][same] - acted.action[head][same].astype(np.float64))
            self._parity.note(f"action.{head}", float((away / (high - low)).max(initial=0.0)))
        places = list(self._choices.values())
        if places:
            self._note("log_prob", acted.log_prob[same][:, places], found["log_prob"][same][:, places])
        if "value" in found:
            self._note("value", acted.value, found["value"])
        if logits := [name for name in found if name.startswith("logits.")]:  # a policy does not tell its own
            expected = self._graph.outputs(self.file.feeds(observation, legal, state, given))
            for name in logits:
                self._note(name, expected[name][same], found[name][same])
        for name, array in acted.state.items():
            self._note(f"next_memory.{name}", array, found[f"next_memory.{name}"])
        return acted

    def _same_choices(self, acted: Acted, found: Tree, row: int) -> bool:
        return all(np.array_equal(found[f"action.{head}"][row], acted.action[head][0]) for head in self._choices)

    def _first_difference_is_small(self, acted: Acted, found: Tree, row: int) -> bool:
        """Whether the first head that differs took an option of the same probability."""
        for head, place in self._choices.items():
            if not np.array_equal(found[f"action.{head}"][row], acted.action[head][row]):
                return abs(float(found["log_prob"][row, place] - acted.log_prob[row, place])) <= TOLERANCE
        return True

    def _note(self, output: str, one: Array, other: Array) -> None:
        self._parity.note(output, _difference(one, other))


def _difference(one: Array, other: Array) -> float:
    """Relative for numbers above 1."""
    difference = np.abs(one.astype(np.float64) - other) / np.maximum(np.abs(one), 1.0)
    return float(difference.max()) if difference.size else 0.0


def _compare_random(pair: _Pair, rows: int) -> None:
    """Memory is carried over `STEPS` decisions, and then over a few after a reset."""
    kind, rng = pair.policy.kind, np.random.default_rng(rows)
    with_memory = bool(pair.policy.state_arrays)
    for steps in (STEPS, STEPS_AFTER_RESET) if with_memory else (STEPS_WITHOUT_MEMORY,):
        states = (pair.policy.initial_state(rows), allocate(pair.policy.state_arrays, (rows,)))
        for _ in range(steps):
            _, states = pair.compare(random_observation(kind, rows, rng), random_legal(kind, rows, rng), states)


def _compare_played(pairs: Sequence[_Pair], game: GameSource, tables: int, rng: np.random.Generator) -> None:
    """Let the player play all seats."""
    spec = game.spec
    with closing(game.tables(tables)) as batch:
        everywhere = np.arange(tables)
        batch.reset(everywhere, rng.integers(2**63, size=tables, dtype=np.uint64))
        memory = [
            tuple(allocate(pair.policy.state_arrays, (tables, len(seats))) for _ in range(2))
            for pair, seats in zip(pairs, spec.seats_of_kind, strict=True)
        ]
        for _ in range(STEPS):
            actions = allocate_actions(spec, tables)
            for kind, seats in enumerate(spec.seats_of_kind):
                where = np.nonzero(batch.view.to_act[:, seats])
                if not len(where[0]):
                    continue
                own, theirs = (take(state, where) for state in memory[kind])
                seen, legal = take(batch.view.observation[kind], where), take(batch.view.legal[kind], where)
                chosen, after = pairs[kind].compare(seen, legal, (own, theirs))
                put(actions[kind], where, chosen)
                for state, new in zip(memory[kind], after, strict=True):
                    put(state, where, new)
            batch.step(actions)
            ended = np.flatnonzero(batch.view.over | batch.view.truncated)
            if len(ended):
                batch.reset(ended, rng.integers(2**63, size=len(ended), dtype=np.uint64))
                for states in memory:
                    for state in states:
                        for array in state.values():
                            array[ended] = 0


def random_observation(kind: SeatKind, rows: int, rng: np.random.Generator) -> Tree:
    """Numbers of any size that the types of the parts can have."""
    return dict(_random_parts(kind, rows, rng))


def _random_parts(kind: SeatKind, rows: int, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    for name, spec in kind.observation.arrays.items():
        part = kind.observation.parts.get(name)
        shape = (rows, *spec.shape)
        if name.startswith(CRITIC_PREFIX):
            yield name, np.zeros(shape, spec.dtype)
        elif part is None:  # the length of a list, at least one: a head may point into it
            entities = kind.observation.parts[name.removesuffix(length_name(""))]
            assert isinstance(entities, Entities)
            yield name, rng.integers(1, entities.maximum, rows, endpoint=True).astype(spec.dtype)
        else:
            array = _random_array(spec.dtype, shape, rng)
            if isinstance(part, Entities):
                if part.types:
                    array[..., 0] = rng.integers(part.types, size=shape[:-1])
                for column, number in enumerate(part.categories, part.features - len(part.categories)):
                    array[..., column] = rng.integers(number, size=shape[:-1])
            yield name, array


def _random_array(dtype: np.dtype[np.generic], shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    most = {"b": 2, "u": 256, "i": 100}.get(dtype.kind, 2)
    return rng.integers(most, size=shape).astype(dtype)


def random_legal(kind: SeatKind, rows: int, rng: np.random.Generator) -> Tree:
    """Masks with at least the first option."""
    masks: Mapping[str, Array] = {
        name: rng.random((rows, *spec.shape)) < 0.5 for name, spec in kind.legal_arrays.items()
    }
    for mask in masks.values():
        mask[:, 0] = True
    return dict(masks)

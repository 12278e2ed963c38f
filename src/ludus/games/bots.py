"""Bots for any game: `RandomBot`, bases for fixed and greedy strategies, and the check of a bot's actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import Box, Entities, GameSpec, Pointer, SeatKind, length_name
from ludus.data.trees import Array, IntArray, Tree, put, take
from ludus.games.game import Actions, Bot, GameBatch, HostsBots


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Observations and masks of the seats that a bot plays, one row each."""

    kind: SeatKind
    observation: Tree
    legal: Tree

    @classmethod
    def of(cls, game: GameBatch, tables: IntArray, seats: IntArray) -> Rows:
        """Row i is (tables[i], seats[i]); all seats are of one kind."""
        kind = game.spec.seats[int(seats[0])] if len(seats) else 0
        index = (tables, np.asarray(game.spec.column_of_seat)[seats])
        return cls(
            kind=game.spec.kinds[kind],
            observation=take(game.view.observation[kind], index),
            legal=take(game.view.legal[kind], index),
        )

    def __len__(self) -> int:
        return len(next(iter(self.observation.values())))

    def mask(self, head: str) -> NDArray[np.bool_]:
        """[rows, options]: legal by the game's mask and, for a pointer, among the real entities."""
        spec = self.kind.action.heads[head]
        mask = self.legal.get(head)
        if mask is None:
            mask = np.ones((len(self), self.kind.num_options(head)), np.bool_)
        if isinstance(spec, Pointer):
            assert isinstance(self.kind.observation.parts[spec.into], Entities)
            mask = mask & (np.arange(mask.shape[1]) < self.observation[length_name(spec.into)][:, None])
        return mask


@dataclass(frozen=True, kw_only=True)
class RandomBot:
    """Draws legal options uniformly, and numbers uniformly within their bounds; for a pointer with several picks it
    first draws their number."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        actions: Tree = {}
        for name, head in rows.kind.action.heads.items():
            counts = head_counts(rows.kind, name, actions, len(rows))
            if isinstance(head, Box):
                actions[name] = np.where(counts[:, None], draw_within(head, len(rows), rng), np.float32(0))
                continue
            mask = rows.mask(name)
            stuck = np.flatnonzero(counts & ~mask.any(axis=1))
            if len(stuck):
                table, seat = tables[stuck[0]], seats[stuck[0]]
                raise ValueError(f"head {name!r} has no legal option at table {table}, seat {seat}")
            keys = np.where(mask, rng.random(mask.shape), -1.0)
            if isinstance(head, Pointer) and head.picks > 1:
                wanted = rng.integers(1, np.minimum(head.picks, np.maximum(mask.sum(axis=1), 1)) + 1)
                picks = np.argsort(-keys, axis=1)[:, : head.picks]
                picks = np.pad(picks, ((0, 0), (0, head.picks - picks.shape[1])))
                chosen = counts[:, None] & (np.arange(head.picks) < wanted[:, None])
                actions[name] = np.where(chosen, picks, -1).astype(np.int32)
            else:
                actions[name] = np.where(counts, keys.argmax(axis=1), 0).astype(np.int32)
        return actions


def act_among(bot: Bot, game: GameBatch, among: NDArray[np.bool_], rng: np.random.Generator, actions: Actions) -> None:
    """Write the bot's actions for the seats to act in `among`, which broadcasts with [tables, seats]."""
    acting = game.view.to_act & among
    for kind, seats in enumerate(game.spec.seats_of_kind):
        tables, columns = np.nonzero(acting[:, seats])
        if len(tables):
            put(actions[kind], (tables, columns), bot.act(game, tables, np.asarray(seats)[columns], rng))


def head_counts(
    kind: SeatKind, head: str, earlier: Mapping[str, Array], rows: int | tuple[int, ...]
) -> NDArray[np.bool_]:
    """[rows], which may be several axes: whether the head counts given the earlier heads' actions; the head that it
    depends on must count too."""
    when = kind.action.heads[head].when
    if when is None:
        return np.ones(rows, np.bool_)
    met: NDArray[np.bool_] = np.isin(earlier[when.head], when.values)
    return met & head_counts(kind, when.head, earlier, rows)


def draw_within(box: Box, num_rows: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """[rows, size]: numbers drawn uniformly within the bounds."""
    low, high = np.array(box.bounds)
    share = rng.random((num_rows, box.size))
    numbers = (low * (1 - share) + high * share).astype(np.float32)
    drawn: NDArray[np.float32] = np.clip(numbers, low.astype(np.float32), high.astype(np.float32))
    return drawn


def require_within_bounds(spec: GameSpec, to_act: NDArray[np.bool_], actions: Actions) -> None:
    """Raise `ValueError` for the first number of a `Box` that counts and is NaN or beyond its bounds. `to_act` is
    [tables, seats]."""
    for kind, seats, tree in zip(spec.kinds, spec.seats_of_kind, actions, strict=True):
        for name, box in kind.action.boxes.items():
            outside = box.outside(tree[name])
            if not outside.any():
                continue
            acting = to_act[:, list(seats)]
            acting &= head_counts(kind, name, tree, acting.shape)
            for table, column, number in np.argwhere(outside & acting[:, :, None]).tolist():
                why = box.refusal(tree[name][table, column, number], number)
                raise ValueError(f"{spec.name}: table {table}, seat {seats[column]}: head {name!r} is {why}")


def first_illegal(rows: Rows, actions: Tree) -> tuple[int, str] | None:
    """The first row with an illegal action and the reason; None: all actions are legal."""
    heads = rows.kind.action.heads
    if set(actions) != set(heads):
        return 0, f"gives heads {sorted(actions)}, expected {sorted(heads)}"
    for name, head in heads.items():
        array, shape = actions[name], (len(rows), *rows.kind.action.arrays[name].shape)
        dtype = rows.kind.action.arrays[name].dtype
        if array.shape != shape or not np.issubdtype(array.dtype, np.floating if dtype.kind == "f" else np.integer):
            return 0, f"head {name!r} is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}"
        counts = head_counts(rows.kind, name, actions, len(rows))
        if isinstance(head, Box):
            for row, number in np.argwhere(head.outside(array) & counts[:, None]).tolist():
                return row, f"head {name!r} is {head.refusal(array[row, number], number)}"
            continue
        mask = rows.mask(name)
        for row, value in enumerate(array.tolist()):
            if not counts[row]:
                continue
            picks = value if isinstance(value, list) else [value]
            if isinstance(head, Pointer) and head.picks > 1:
                picks = picks[: picks.index(-1)] if -1 in picks else picks
                ended = all(pick == -1 for pick in value[len(picks) :])
                if not picks or not ended or len(set(picks)) < len(picks):
                    return row, f"head {name!r} picks {value}: needs different rows, then only -1"
            illegal = [pick for pick in picks if not (0 <= pick < mask.shape[1] and mask[row, pick])]
            if illegal:
                legal = np.flatnonzero(mask[row]).tolist()
                return row, f"head {name!r} takes {illegal[0]}, but legal are {legal}"
    return None


@dataclass(frozen=True)
class HostedBot:
    """A bot that acts where its tables are, in another process or on another machine."""

    name: str

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        if not isinstance(game, HostsBots):
            raise TypeError(f"bot {self.name!r} plays only where its game runs, not at {type(game).__name__}")
        return game.bot_act(self.name, tables, seats, int(rng.integers(2**63)))


def hosted_bots(names: Iterable[str]) -> dict[str, Bot]:
    """The bots of a game that runs elsewhere; `random` needs nothing of the game and acts here."""
    return {name: RandomBot() if name == "random" else HostedBot(name) for name in ("random", *names)}


class StrategyBot(ABC):
    """A fixed strategy for a game with a single `Choice` head, which can also be evaluated exactly."""

    @abstractmethod
    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[rows, options] from the observations and the mask [rows, options]."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        rows = Rows.of(game, tables, seats)
        (head,) = rows.kind.action.heads
        probs = self.probabilities(rows.observation, rows.mask(head))
        # Draws are scaled by the row's own sum, so that rounding never selects past the last option.
        edges = probs.cumsum(axis=1)
        draws = rng.random((len(rows), 1)) * edges[:, -1:]
        return {head: (draws >= edges).sum(axis=1).astype(np.int32)}


@dataclass(frozen=True, kw_only=True)
class AlwaysBot(StrategyBot):
    """Plays the same option in every decision."""

    action: int

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.tile(np.eye(legal.shape[1])[self.action], (len(legal), 1))


class GreedyBot(StrategyBot):
    """Plays a legal option of the highest value; ties are broken uniformly at random."""

    @abstractmethod
    def values(self, observation: Tree) -> Array:
        """[rows, options]: value of each option; illegal options may have any value."""

    def probabilities(self, observation: Tree, legal: NDArray[np.bool_]) -> NDArray[np.float64]:
        values = np.where(legal, self.values(observation).astype(np.float64), -np.inf)
        best = values == values.max(axis=1, keepdims=True)
        probs: NDArray[np.float64] = best / best.sum(axis=1, keepdims=True)
        return probs

"""Strategies to follow: a game that shows each seat what to build and rewards it for building that.

A strategy (z) describes what was built in an episode: a build order, and facts about what was built at all.
`ludus convert` writes the strategies of replays to a file, from which one is drawn for each seat and episode.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.specs import GameSpec, SeatKind, Vector
from ludus.data.trees import Array, IntArray
from ludus.games.game import Actions, Bot, GameBatch, HasStrategy, TableView
from ludus.games.seeding import mix, randbelow, uniform
from ludus.games.tables import InnerBot, WrappedGame, WrappedTables

PART = "z"
REWARDS = ("build_order", "built")
FADED = np.array([1.0, 0.5, 0.25, 0.0], np.float32)
"""Factors of the rewards before the first time of `fade` and after each of the three."""

BUILT_IN = {"skirmish": str(Path(__file__).parent / "builtin" / "skirmish_strategies.npz")}
"""Files that come with Ludus, by game: what the winners among its bots built."""

_STREAM = 0x7A  # separates these draws of a table's seed from the game's own
_DRAWS = 4  # draws per seat and episode: the strategy, whether it is shown, whether each of the two rewards is given


@dataclass(frozen=True, kw_only=True)
class WithStrategies(WrappedGame):
    """A `GameSource` around one whose seats build things (`HasStrategy`). Every observation gets a part `z`, and every
    seat two further rewards.

    The rewards are the decrease of the distance between what a seat has built and its strategy: the edit distance of
    its build order to the prefix of the same length, and the number of facts that differ. Both are divided by the size
    of the strategy.
    """

    strategies: str
    """An .npz file that `ludus convert` wrote, or the name of a game with which Ludus brings one (skirmish)."""
    types: int | None = None
    """Number of things that can be built; None: as many as the file names."""
    shown: float = 0.9
    """Probability that a seat sees its strategy; otherwise z is zero and there is no reward for it."""
    active: float = 0.25
    """Probability of each of the two rewards, if the strategy is shown."""
    fade: tuple[int, int, int] | None = None
    """Game times from which the rewards are halved, quartered and zero."""
    scale: float = 1.0
    """Multiplies the rewards."""
    fixed: int | None = None
    """Number of a strategy that every seat always sees, to evaluate how a player follows it."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", shown=self.shown, active=self.active)
        if self.fade is not None and list(self.fade) != sorted(self.fade):
            raise ValueError(f"WithStrategies.fade must be times in order, got {self.fade}")

    @cached_property
    def known(self) -> Strategies:
        found = Strategies.read(self.strategies)
        if self.types is not None and found.build_order.max() >= self.types:
            raise ValueError(
                f"WithStrategies.types must be above {found.build_order.max()}, the highest in the build "
                f"orders of {self.strategies!r}, got {self.types}"
            )
        if self.fixed is not None and not 0 <= self.fixed < len(found):
            raise ValueError(
                f"WithStrategies.fixed must be from 0 to {len(found) - 1}, the strategies of "
                f"{self.strategies!r}, got {self.fixed}"
            )
        return found

    @cached_property
    def spec(self) -> GameSpec:
        part = Vector(size=self.features(self.known.build_order[:1], self.known.built[:1]).shape[1])
        spec = self.game.spec
        return replace(spec, kinds=tuple(_extended(kind, part) for kind in spec.kinds))

    def without(self) -> WithStrategies:
        """The same game, in which no seat is shown a strategy or rewarded for one; unless `fixed` asks for one."""
        return self if self.fixed is not None else replace(self, shown=0.0)

    def features(self, build_order: Array, built: Array) -> NDArray[np.float32]:
        """The part `z` of strategies [rows, places] and [rows, facts]: [rows, 1 + places * types + facts]. The first
        number is 1 if a strategy is shown. A place with a number not below `types` is left empty."""
        types = self.types
        if types is None:
            types = int(self.known.build_order.max()) + 1
        places = build_order[..., None] == np.arange(max(types, 1))
        shown = (np.ones((len(built), 1)), places.reshape(len(built), -1), built)
        return np.concatenate(shown, 1, dtype=np.float32)

    def tables(self, num_tables: int) -> GameBatch:
        return StrategyTables(self, self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {name: InnerBot(bot) for name, bot in self.game.bots().items()}

    def tree(self) -> None:
        """The states of the game's tree do not show strategies."""


def _extended(kind: SeatKind, part: Vector) -> SeatKind:
    parts = kind.observation.parts
    if PART in parts:
        raise ValueError(f"WithStrategies: {kind.name!r} sees a part called {PART!r} already")
    observation = replace(kind.observation, parts={**parts, PART: part})
    return replace(kind, observation=observation, rewards=(*kind.rewards, *REWARDS))


class StrategyTables(WrappedTables):
    """A `GameBatch` that adds strategies to another one's observations and rewards. A tree would not show them."""

    PASSED_ON = ("render", "strategy")

    def __init__(self, source: WithStrategies, game: GameBatch) -> None:
        super().__init__(game, source.spec)
        self._source, self._known = source, source.known
        if not isinstance(game, HasStrategy):
            raise ValueError(f"WithStrategies: nothing is built in {game.spec.name}: its tables have no `strategy`")
        for name, known in (("build_order", self._known.build_order), ("built", self._known.built)):
            size = getattr(game.strategy, name).shape[-1]
            if known.shape[1] != size:
                raise ValueError(
                    f"WithStrategies: {name!r} of {game.spec.name} has {size} entries, but "
                    f"{known.shape[1]} in {source.strategies!r}"
                )
        places = (game.num_tables, self.spec.num_seats)
        self._orders = EditDistances(places, self._known.build_order.shape[1])
        self._built = np.zeros((*places, self._known.built.shape[1]), np.bool_)
        self._distance = np.zeros((*places, len(REWARDS)), np.float32)
        self._active = np.zeros((*places, len(REWARDS)), np.bool_)
        self._steps = np.zeros(game.num_tables, np.int64)
        own = TableView.allocate(self.spec, game.num_tables)
        self.view = replace(
            game.view,
            observation=tuple(
                {**shown, PART: added[PART]}
                for shown, added in zip(game.view.observation, own.observation, strict=True)
            ),
            rewards=own.rewards,
        )

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        source = self._source
        own = mix(seeds, _STREAM)[:, None]
        draw = _DRAWS * np.arange(self.spec.num_seats)
        number, shown = randbelow(own, draw, len(self._known)), uniform(own, draw + 1) < source.shown
        if source.fixed is not None:
            number, shown = np.full_like(number, source.fixed), np.ones_like(shown)
        active = uniform(own[:, :, None], draw[:, None] + np.array([2, 3])) < source.active
        self._active[tables] = active & shown[..., None]
        self._built[tables] = self._known.built[number]
        self._orders.begin(tables, self._known.build_order[number])
        self._distance[tables] = self._distances()[tables]
        self._steps[tables] = 0
        for seats, seen, rewards in zip(self.spec.seats_of_kind, self.view.observation, self.view.rewards, strict=True):
            chosen = number[:, seats].reshape(-1)
            features = source.features(self._known.build_order[chosen], self._known.built[chosen])
            shape = (len(tables), len(seats), -1)
            seen[PART][tables] = features.reshape(shape) * shown[:, seats, None]
            rewards[tables] = 0.0

    def step(self, actions: Actions) -> None:
        live = ~(self.view.over | self.view.truncated)
        self.game.step(actions)
        self._steps += live
        after = self._distances()
        clock = self.view.clock if self.spec.timed else self._steps
        faded = FADED[np.searchsorted(self._source.fade or (), clock, side="right")]
        gained = self._source.scale * faded[:, None, None] * self._active * (self._distance - after)
        self._distance = after
        for seats, rewards, others in zip(
            self.spec.seats_of_kind, self.view.rewards, self.game.view.rewards, strict=True
        ):
            whole = np.concatenate((others, gained[:, seats]), -1)
            rewards[live] = whole[live]

    def _distances(self) -> NDArray[np.float32]:
        """[tables, seats, rewards]: distance between what was built and the strategy, as a share of its size."""
        now = self.strategy
        orders = self._orders.of(now.build_order) / now.build_order.shape[-1]
        facts = (now.built != self._built).mean(-1)
        return np.stack((orders, facts), -1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Strategies:
    """The strategies of N episodes."""

    build_order: NDArray[np.int16]
    """[N, places]: -1 after the end."""
    built: NDArray[np.bool_]

    @classmethod
    def read(cls, path: str) -> Strategies:
        """Read an .npz file with the arrays `build_order` and `built`."""
        path = BUILT_IN.get(path, path)
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays: dict[str, Any] = {name: file[name] for name in REWARDS if name in file}
        except FileNotFoundError:
            raise ValueError(f"strategies: there is no file {path!r}; `ludus convert` writes one") from None
        except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(f"strategies: {path!r} is not an .npz file of strategies: {error}") from None
        for name, kind in zip(REWARDS, "ib", strict=True):
            array = arrays.get(name)
            if array is None:
                raise ValueError(f"strategies: {path!r} has no array {name!r}")
            if array.ndim != 2 or array.dtype.kind != kind or 0 in array.shape:
                raise ValueError(
                    f"strategies: {name!r} of {path!r} must be {'integers' if kind == 'i' else 'bool'} "
                    f"[episodes, size], is {array.dtype} {list(array.shape)}"
                )
        if len(arrays["build_order"]) != len(arrays["built"]):
            raise ValueError(f"strategies: the arrays of {path!r} are of different numbers of episodes")
        order = arrays["build_order"]
        goes_on = (order[:, 1:] >= 0) & (order[:, :-1] < 0)
        if order.min() < -1 or order.max() > np.iinfo(np.int16).max or goes_on.any():
            raise ValueError(
                f"strategies: 'build_order' of {path!r} must hold numbers from 0 to "
                f"{np.iinfo(np.int16).max}, and -1 from the end of an order on"
            )
        return cls(order.astype(np.int16), arrays["built"])

    def __len__(self) -> int:
        return len(self.build_order)


class EditDistances:
    """Levenshtein distances at `shape` places, each between a sequence and the prefix of its goal of the same length.

    Both hold up to `size` items, and -1 after the end. Sequences only grow: a new item costs one row of the table.
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._goals = np.full((*shape, size), -1, np.int16)
        self._goal_lengths = np.zeros(shape, np.int64)
        self._lengths = np.zeros(shape, np.int64)
        self._rows = np.zeros((*shape, size + 1), np.int16)
        """Entry j: distance of the sequence to the first j items of the goal."""

    def begin(self, places: IntArray, goals: NDArray[np.int16]) -> None:
        """Start empty sequences with these goals; `places` is an index of the first axis."""
        self._goals[places] = goals
        self._goal_lengths[places] = (goals >= 0).sum(-1)
        self._lengths[places] = 0
        self._rows[places] = np.arange(self._rows.shape[-1])

    def of(self, sequences: NDArray[np.int16]) -> NDArray[np.int16]:
        """Distances of sequences [*shape, size], which extend the previous ones."""
        lengths = (sequences >= 0).sum(-1)
        while (behind := np.nonzero(self._lengths < lengths))[0].size:
            self._append(behind, sequences[(*behind, self._lengths[behind])])
        prefix = np.minimum(self._lengths, self._goal_lengths)
        return np.take_along_axis(self._rows, prefix[..., None], -1)[..., 0]

    def _append(self, places: tuple[IntArray, ...], items: NDArray[np.int16]) -> None:
        before = self._rows[places]
        replaced = before[:, :-1] + (self._goals[places] != items[:, None])
        best = np.concatenate((before[:, :1] + 1, np.minimum(replaced, before[:, 1:] + 1)), 1)
        # The minimum of best[k] + j - k over k <= j: the sequence may leave out items of the goal.
        steps = np.arange(best.shape[1])
        self._rows[places] = np.minimum.accumulate(best - steps, 1) + steps
        self._lengths[places] += 1

"""Strategies to follow: a game that shows each seat what to build and rewards it for building that.

A strategy (z) describes what was built in an episode: a build order, and facts about what was built at all.
`ludus convert` writes the strategies of replays to a file, from which one is drawn for each seat and episode.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ludus.data.checks import require_in
from ludus.data.specs import Entities, GameSpec, Part, SeatKind, Vector, length_name
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.game import PLACE_GRID, Actions, Bot, GameBatch, HasStrategy, TableView
from ludus.games.seeding import mix, randbelow, uniform
from ludus.games.tables import InnerBot, WrappedGame, WrappedTables

PART = "z"
ORDER = "z_build_order"
REWARDS = ("build_order", "built")
"""The arrays of a file of strategies, and the rewards unless the facts come in groups."""
FADED = np.array([1.0, 0.5, 0.25, 0.0], np.float32)
"""Factors of the rewards before the first time of `fade` and after each of the three."""

_PLACE = "build_place"
_WRONG_PLACE = 0.8
BUILT_IN = {"skirmish": str(Path(__file__).parent / "builtin" / "skirmish_strategies.npz")}
"""Files that come with Ludus, by game: what the winners among its bots built."""

_STREAM = 0x7A  # separates these draws of a table's seed from the game's own
_DRAWS = 4  # draws per seat and episode: the strategy, whether it is shown, whether each of two rewards is given


@dataclass(frozen=True, kw_only=True)
class WithStrategies(WrappedGame):
    """A `GameSource` around one whose seats build things (`HasStrategy`). Every observation gets a part `z`, and every
    seat two further rewards, or one for the build order and one for each of `groups`.

    The rewards are the decrease of the distance between what a seat has built and its strategy: the edit distance of
    its build order to the prefix of the same length, and the number of facts that differ. Each is divided by the size
    of its part of the strategy.
    """

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.strategies:TensorStrategies.of"
    strategies: str
    """An .npz file that `ludus convert` wrote, or the name of a game with which Ludus brings one (skirmish)."""
    types: int | None = None
    """Number of things that can be built; None: as many as the file names."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Name -> size of consecutive groups of facts, each with a reward of its own; default: one group, `built`."""
    separate: bool = False
    """Show a strategy in several parts: `z` (1 if one is shown), the list of entities `z_build_order`, and a vector
    for each group of facts, such as `z_built`. Default: one vector `z`."""
    shown: float = 0.9
    """Probability that a seat sees its strategy; otherwise z is zero and there is no reward for it."""
    active: float = 0.25
    """Probability of each of the rewards, if the strategy is shown."""
    fade: tuple[int, int, int] | None = None
    """Game times from which the rewards are halved, quartered and zero."""
    scale: float = 1.0
    """Multiplies the rewards."""
    reach: float = 5.0
    """Distance, in cells of 128 along a side of the map, from which on a thing of the right kind is in the wrong place.
    Up to there its cost grows with the square of the distance, to 0.8 of that of a wrong thing."""
    fixed: int | None = None
    """Number of a strategy that every seat always sees, to evaluate how a player follows it."""

    def __post_init__(self) -> None:
        require_in(self, "[0, 1]", shown=self.shown, active=self.active)
        require_in(self, "(0, inf]", reach=self.reach)
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
        if self.groups and sum(self.groups.values()) != found.built.shape[1]:
            raise ValueError(
                f"WithStrategies.groups must have {found.built.shape[1]} facts in all, as many as "
                f"{self.strategies!r}, got {sum(self.groups.values())}"
            )
        return found

    @cached_property
    def facts(self) -> dict[str, slice]:
        """Group of facts -> its facts."""
        groups = self.groups or {"built": self.known.built.shape[1]}
        ends = np.cumsum([*groups.values()]).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(groups.items(), ends, strict=True)}

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The parts that are added to every observation."""
        places = self.known.build_order.shape[1]
        if not self.separate:
            return {PART: Vector(size=1 + places * self._num_types + self.known.built.shape[1])}
        # The type, the column and row where it was built, and its number in the order.
        order = Entities(
            maximum=places,
            features=2 if self.known.build_place is None else 4,
            types=self._num_types,
            categories=(places,),
        )
        facts = {f"{PART}_{name}": Vector(size=rows.stop - rows.start) for name, rows in self.facts.items()}
        return {PART: Vector(size=1), ORDER: order, **facts}

    @property
    def _num_types(self) -> int:
        return max(1, int(self.known.build_order.max()) + 1) if self.types is None else self.types

    @cached_property
    def spec(self) -> GameSpec:
        spec = self.game.spec
        rewards = ("build_order", *self.facts)
        return replace(spec, kinds=tuple(_extended(kind, self.parts, rewards) for kind in spec.kinds))

    def features(self, strategies: Strategies, shown: Array) -> Tree:
        """The arrays of the parts for some strategies, zero unless `shown` [strategies]. The first number of `z` is 1
        if a strategy is shown. A place with a number not below `types` is left empty."""
        build_order, built = strategies.build_order, strategies.built
        hidden = ~np.asarray(shown, np.bool_)
        flag = np.ones((len(built), 1), np.float32)
        if not self.separate:
            places = build_order[..., None] == np.arange(self._num_types)
            whole = np.concatenate((flag, places.reshape(len(built), -1), built), 1, dtype=np.float32)
            found: Tree = {PART: whole}
        else:
            columns: list[Array] = [build_order, np.arange(build_order.shape[1])]
            if self.known.build_place is not None:
                assert strategies.build_place is not None
                where = strategies.build_place
                columns[1:1] = [np.where(where < 0, 0.0, (cell + 0.5) / PLACE_GRID) for cell in _cells(where)]
            order = np.stack(np.broadcast_arrays(*columns), -1)
            known = (build_order >= 0) & (build_order < self._num_types)
            length = known.cumprod(1).sum(1, dtype=np.int32)  # up to the first number that has no type
            order = np.where(np.arange(order.shape[1])[:, None] < length[:, None, None], order, 0)
            found = {PART: flag, ORDER: order.astype(np.float32), length_name(ORDER): length}
            found |= {f"{PART}_{name}": built[:, rows].astype(np.float32) for name, rows in self.facts.items()}
        for array in found.values():
            array[hidden] = 0
        return found

    @property
    def pays(self) -> bool:
        """Whether any seat may be rewarded for a strategy."""
        return self.fixed is not None or self.shown > 0

    def without(self) -> WithStrategies:
        """The same game, in which no seat is shown a strategy or rewarded for one; unless `fixed` asks for one."""
        return self if self.fixed is not None else replace(self, shown=0.0)

    def tables(self, num_tables: int) -> GameBatch:
        return StrategyTables(self, self.game.tables(num_tables))

    def bots(self) -> Mapping[str, Bot]:
        return {name: InnerBot(bot) for name, bot in self.game.bots().items()}

    def tree(self) -> None:
        """The states of the game's tree do not show strategies."""


def _extended(kind: SeatKind, added: Mapping[str, Part], rewards: tuple[str, ...]) -> SeatKind:
    parts = kind.observation.parts
    for name in added:
        if name in parts:
            raise ValueError(f"WithStrategies: {kind.name!r} sees a part called {name!r} already")
    observation = replace(kind.observation, parts={**parts, **added})
    return replace(kind, observation=observation, rewards=(*kind.rewards, *rewards))


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
        if self._known.build_place is not None and game.strategy.build_place is None:
            raise ValueError(
                f"WithStrategies: {source.strategies!r} has places, which {game.spec.name} does not report"
            )
        self._orders = EditDistances(places, self._known.build_order.shape[1], source.reach)
        self._built = np.zeros((*places, self._known.built.shape[1]), np.bool_)
        self._num_rewards = 1 + len(source.facts)
        self._distance = np.zeros((*places, self._num_rewards), np.float32)
        self._active = np.zeros((*places, self._num_rewards), np.bool_)
        self._steps = np.zeros(game.num_tables, np.int64)
        self._arrays = [array for name, part in source.parts.items() for array in part.arrays(name)]
        own = TableView.allocate(self.spec, game.num_tables)
        self.view = replace(
            game.view,
            observation=tuple(
                {**shown, **{name: added[name] for name in self._arrays}}
                for shown, added in zip(game.view.observation, own.observation, strict=True)
            ),
            rewards=own.rewards,
        )

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self.game.reset(tables, seeds)
        source = self._source
        number, shown, active = strategy_draws(source, seeds, self.spec.num_seats)
        self._active[tables] = active
        self._built[tables] = self._known.built[number]
        where = self._known.build_place
        self._orders.begin(tables, self._known.build_order[number], None if where is None else where[number])
        self._distance[tables] = self._distances()[tables]
        self._steps[tables] = 0
        for seats, seen, rewards in zip(self.spec.seats_of_kind, self.view.observation, self.view.rewards, strict=True):
            chosen = number[:, seats].reshape(-1)
            features = source.features(self._known.take(chosen), shown[:, seats].reshape(-1))
            for name, array in features.items():
                seen[name][tables] = array.reshape(len(tables), len(seats), *array.shape[1:])
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
        where = None if self._known.build_place is None else now.build_place
        orders = self._orders.of(now.build_order, where) / now.build_order.shape[-1]
        wrong = now.built != self._built
        facts = [wrong[..., rows].mean(-1) for rows in self._source.facts.values()]
        return np.stack((orders, *facts), -1).astype(np.float32)


class StrategyDraws(NamedTuple):
    """What chance decides at the start of an episode, [tables, seats]."""

    number: IntArray
    """Of the strategy in the file."""
    shown: NDArray[np.bool_]
    active: NDArray[np.bool_]
    """[tables, seats, rewards]"""


def strategy_draws(source: WithStrategies, seeds: NDArray[np.uint64], num_seats: int) -> StrategyDraws:
    """The strategies of all seats at tables with these seeds."""
    num_rewards = 1 + len(source.facts)
    own = mix(seeds, _STREAM)[:, None]
    draw = _DRAWS * np.arange(num_seats)
    number, shown = randbelow(own, draw, len(source.known)), uniform(own, draw + 1) < source.shown
    if source.fixed is not None:
        number, shown = np.full_like(number, source.fixed), np.ones_like(shown)
    # Draws of the third reward and later come after those of all seats.
    further = max(0, num_rewards - 2)
    later = _DRAWS * num_seats + further * np.arange(num_seats)[:, None] + np.arange(further)
    draws = np.concatenate((draw[:, None] + np.array([2, 3]), later), 1)[:, :num_rewards]
    active = uniform(own[:, :, None], draws) < source.active
    return StrategyDraws(number, shown, active & shown[..., None])


@dataclass(frozen=True, slots=True)
class Strategies:
    """The strategies of N episodes."""

    build_order: NDArray[np.int16]
    """[N, places]: -1 after the end."""
    built: NDArray[np.bool_]
    build_place: NDArray[np.int16] | None = None
    """[N, places]: where each was built, see `StrategyView`; None: anywhere."""

    @classmethod
    def read(cls, path: str) -> Strategies:
        """Read an .npz file with the arrays `build_order` and `built`, and maybe `build_place`."""
        path = BUILT_IN.get(path, path)
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays: dict[str, Any] = {name: file[name] for name in (*REWARDS, _PLACE) if name in file}
        except FileNotFoundError:
            raise ValueError(f"strategies: there is no file {path!r}; `ludus convert` writes one") from None
        except (OSError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(f"strategies: {path!r} is not an .npz file of strategies: {error}") from None
        for name, kind in {"build_order": "i", "built": "b", _PLACE: "i"}.items():
            array = arrays.get(name)
            if array is None and name == _PLACE:
                continue
            if array is None:
                raise ValueError(f"strategies: {path!r} has no array {name!r}")
            if array.ndim != 2 or array.dtype.kind != kind or 0 in array.shape:
                raise ValueError(
                    f"strategies: {name!r} of {path!r} must be {'integers' if kind == 'i' else 'bool'} "
                    f"[episodes, size], is {array.dtype} {list(array.shape)}"
                )
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError(f"strategies: the arrays of {path!r} are of different numbers of episodes")
        order, where = arrays["build_order"], arrays.get(_PLACE)
        if where is not None:
            if where.shape != order.shape or where.min() < -1 or where.max() >= PLACE_GRID**2:
                raise ValueError(
                    f"strategies: {_PLACE!r} of {path!r} must hold a cell from 0 to {PLACE_GRID**2 - 1}, or -1, for "
                    "every entry of 'build_order'"
                )
            where = where.astype(np.int16)
        goes_on = (order[:, 1:] >= 0) & (order[:, :-1] < 0)
        if order.min() < -1 or order.max() > np.iinfo(np.int16).max or goes_on.any():
            raise ValueError(
                f"strategies: 'build_order' of {path!r} must hold numbers from 0 to "
                f"{np.iinfo(np.int16).max}, and -1 from the end of an order on"
            )
        return cls(order.astype(np.int16), arrays["built"], where)

    def take(self, chosen: IntArray) -> Strategies:
        where = None if self.build_place is None else self.build_place[chosen]
        return Strategies(self.build_order[chosen], self.built[chosen], where)

    def __len__(self) -> int:
        return len(self.build_order)


class EditDistances:
    """Levenshtein distances at `shape` places, each between a sequence and the prefix of its goal of the same length.

    Both hold up to `size` items, and -1 after the end. Sequences only grow: a new item costs one row of the table.
    If both have places, the right item in another place costs up to `_WRONG_PLACE`, which it does at `reach` cells.
    """

    def __init__(self, shape: tuple[int, ...], size: int, reach: float = 1.0) -> None:
        self._reach = reach
        self._goals = np.full((*shape, size), -1, np.int16)
        self._goal_places = np.full((*shape, size), -1, np.int16)
        self._goal_lengths = np.zeros(shape, np.int64)
        self._lengths = np.zeros(shape, np.int64)
        self._rows = np.zeros((*shape, size + 1), np.float64)
        """Entry j: distance of the sequence to the first j items of the goal."""

    def begin(self, places: IntArray, goals: NDArray[np.int16], where: NDArray[np.int16] | None = None) -> None:
        """Start empty sequences with these goals; `places` is an index of the first axis."""
        self._goals[places] = goals
        self._goal_places[places] = -1 if where is None else where
        self._goal_lengths[places] = (goals >= 0).sum(-1)
        self._lengths[places] = 0
        self._rows[places] = np.arange(self._rows.shape[-1])

    def of(self, sequences: NDArray[np.int16], where: NDArray[np.int16] | None = None) -> NDArray[np.float64]:
        """Distances of sequences [*shape, size], which extend the previous ones."""
        lengths = (sequences >= 0).sum(-1)
        while (behind := np.nonzero(self._lengths < lengths))[0].size:
            last = (*behind, self._lengths[behind])
            self._append(behind, sequences[last], None if where is None else where[last])
        prefix = np.minimum(self._lengths, self._goal_lengths)
        return np.take_along_axis(self._rows, prefix[..., None], -1)[..., 0]

    def _append(self, places: tuple[IntArray, ...], items: NDArray[np.int16], where: NDArray[np.int16] | None) -> None:
        before = self._rows[places]
        cost: Array = self._goals[places] != items[:, None]
        if where is not None:
            cost = np.maximum(cost, self._misplaced(where[:, None], self._goal_places[places]))
        replaced = before[:, :-1] + cost
        best = np.concatenate((before[:, :1] + 1, np.minimum(replaced, before[:, 1:] + 1)), 1)
        # The minimum of best[k] + j - k over k <= j: the sequence may leave out items of the goal.
        steps = np.arange(best.shape[1])
        self._rows[places] = np.minimum.accumulate(best - steps, 1) + steps
        self._lengths[places] += 1

    def _misplaced(self, where: NDArray[np.int16], goal: NDArray[np.int16]) -> NDArray[np.float64]:
        squares = [
            (np.subtract(one, other, dtype=np.int64) / self._reach) ** 2
            for one, other in zip(_cells(where), _cells(goal), strict=True)
        ]
        return np.where((where < 0) | (goal < 0), 0.0, _WRONG_PLACE * np.minimum(squares[0] + squares[1], 1.0))


def _cells(places: NDArray[np.int16]) -> tuple[Array, Array]:
    """Columns and rows."""
    return places % PLACE_GRID, places // PLACE_GRID

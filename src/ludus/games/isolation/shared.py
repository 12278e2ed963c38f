"""Arrays and messages that the trainer and the hosts of its tables share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import Array, take
from ludus.games.game import Actions, NewArray, StrategyView, TableView, allocate_actions


@dataclass(frozen=True, kw_only=True)
class SharedTables:
    """All tables of a batch, or a part of them."""

    view: TableView
    actions: Actions
    chosen: Actions
    """Choices of a scripted player of the game."""
    asked: NDArray[np.bool_]
    """[tables, seats]: the seats that it is to choose for."""
    fresh: NDArray[np.bool_]
    """[tables]: those to be reset, with `seeds`."""
    seeds: NDArray[np.uint64]
    strategy: StrategyView | None

    @classmethod
    def allocate(
        cls, spec: GameSpec, num_tables: int, strategy: tuple[int, int] | None, new: NewArray = np.zeros
    ) -> SharedTables:
        """Both sides allocate in the same order from the same memory, and so see the same arrays."""
        seats = (num_tables, spec.num_seats)
        return cls(
            view=TableView.allocate(spec, num_tables, new),
            actions=allocate_actions(spec, num_tables, new),
            chosen=allocate_actions(spec, num_tables, new),
            asked=new(seats, np.dtype(np.bool_)),
            fresh=new((num_tables,), np.dtype(np.bool_)),
            seeds=new((num_tables,), np.dtype(np.uint64)),
            strategy=None
            if strategy is None
            else StrategyView(
                build_order=new((*seats, strategy[0]), np.dtype(np.int16)),
                built=new((*seats, strategy[1]), np.dtype(np.bool_)),
            ),
        )

    def part(self, start: int, stop: int) -> SharedTables:
        """The tables from `start` up to `stop`."""
        here = slice(start, stop)
        return SharedTables(
            view=_cut(self.view, here),
            actions=tuple(take(tree, here) for tree in self.actions),
            chosen=tuple(take(tree, here) for tree in self.chosen),
            asked=self.asked[here],
            fresh=self.fresh[here],
            seeds=self.seeds[here],
            strategy=None
            if self.strategy is None
            else StrategyView(build_order=self.strategy.build_order[here], built=self.strategy.built[here]),
        )


def _cut(view: TableView, here: slice) -> TableView:
    return replace(
        view,
        observation=tuple(take(tree, here) for tree in view.observation),
        legal=tuple(take(tree, here) for tree in view.legal),
        to_act=view.to_act[here],
        reward=view.reward[here],
        over=view.over[here],
        truncated=view.truncated[here],
        score=view.score[here],
        clock=view.clock[here],
        rewards=tuple(array[here] for array in view.rewards),
    )


def silence(view: TableView, tables: list[int]) -> None:
    """At lost tables nobody acts and nothing happens, whatever was written there last."""
    view.to_act[tables] = view.over[tables] = view.truncated[tables] = False
    for reward in (view.reward, *view.rewards):
        reward[tables] = 0.0


def named_arrays(view: TableView) -> dict[str, Array]:
    """Every array of a view, by name."""
    named: dict[str, Any] = {
        f"{part}[{kind}].{name}": array
        for part in ("observation", "legal")
        for kind, tree in enumerate(getattr(view, part))
        for name, array in tree.items()
    }
    for part in ("to_act", "reward", "over", "truncated", "score", "clock"):
        named[part] = getattr(view, part)
    return named | {f"rewards[{kind}]": array for kind, array in enumerate(view.rewards)}


STEP, RESET, MESSAGE, DONE = b"s", b"r", b"m", b"."


class HostLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a host: which game, and which of its tables."""

    game: str
    options: dict[str, Any]
    needs_display: bool
    start: int = 0
    stop: int = 0
    """The host plays the tables from `start` up to `stop` of shared memory; none: it only describes the game."""
    num_tables: int = 0


class HostHello(msgspec.Struct, frozen=True, kw_only=True, tag_field="message", tag="hello"):
    """The first answer: describes the game."""

    spec: dict[str, Any]
    bots: tuple[str, ...]
    has_pictures: bool = False
    strategy: tuple[int, int] | None = None
    """If seats build things: the length of a build order, and the number of facts."""


class HostFailed(msgspec.Struct, frozen=True, tag_field="message", tag="failed"):
    """The host ends."""

    kind: str
    """`raised`: the game raised an error; `garbage`: its tables are in an impossible state."""
    reason: str


class BotAct(msgspec.Struct, frozen=True, tag_field="message", tag="bot_act"):
    """A scripted player chooses for the rows that shared memory marks."""

    bot: str
    seed: int


class DrawTable(msgspec.Struct, frozen=True, tag_field="message", tag="draw"):
    table: int
    seat: int | None


class TablePicture(msgspec.Struct, frozen=True, tag_field="message", tag="picture"):
    height: int
    width: int
    rgb: bytes


ToHost = BotAct | DrawTable
FromHost = HostHello | HostFailed | TablePicture

"""One game between a person and a player of a run, at one table, from its first move to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ludus.data.specs import GameSpec
from ludus.data.trees import Tree
from ludus.games.bots import Rows, first_illegal
from ludus.games.game import GameBatch, GameSource, Seat, allocate_actions, lost_tables
from ludus.games.recording import RecordedTables, Recording, record_innermost
from ludus.games.seat_rows import GameError
from ludus.play.agent import TABLE, Agent
from ludus.play.skirmish_page import Commander, SkirmishView
from ludus.play.views import View
from ludus.workers.opinion import Opinion


class WrongMove(ValueError):  # noqa: N818
    """A move that cannot be made; the game is as it was."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a game came out."""

    score: tuple[float, ...]
    """By team."""
    recording: Recording
    decisions: tuple[int, ...]
    """By seat."""


@dataclass(kw_only=True)
class _Thoughts:
    """The newest of each kind."""

    of_person: Opinion | None = None
    """What the agent would think in the person's place."""
    of_agent: Opinion | None = None
    agent_chose: int | None = None
    of_options: list[str] = field(default_factory=list)
    """What the agent's options were called."""


class Session:
    """The person has one seat, the agent has all others."""

    def __init__(self, source: GameSource, view: View, agent: Agent, seat: Seat, *, seed: int) -> None:
        self._view = view
        self._agent = agent
        self.seat = seat
        self.ended: Ended | None = None
        self._recording: Recording | None = None
        self._tables = record_innermost(source, self._keep).tables(1)
        self._plain = _game_itself(self._tables)
        self._actions = allocate_actions(self.spec, 1)
        self._decisions = [0] * self.spec.num_seats
        self._latest: int | None = None
        self._thoughts = _Thoughts()
        self._commander = Commander(self._plain, seat) if isinstance(view, SkirmishView) else None
        self._missed = ""
        self._ordered = False
        try:
            self._tables.reset(TABLE, np.array([seed], np.uint64))
            self._go_on(None)
        except BaseException:
            self._tables.close()
            raise

    @property
    def spec(self) -> GameSpec:
        return self._tables.spec

    @property
    def started(self) -> bool:
        """The person has decided something; to let time go by is nothing yet."""
        return self._ordered if self._view.real_time else self._decisions[self.seat] > 0

    def close(self) -> None:
        self._tables.close()

    # --- playing ---

    def options(self) -> dict[int, str]:
        """The options that are legal for the person now, and what they are called; in real time there are
        orders instead."""
        if self.ended is not None or self._view.real_time:
            return {}
        names = self._view.options(self._plain, self.seat)
        mask = self._rows().mask(self._head)[0]
        return {option: names[option] for option in np.flatnonzero(mask).tolist()}

    def move(self, option: int) -> None:
        """Of a game with one choice a turn: the person's, then whatever the agent does until it is the
        person's turn again."""
        legal = self.options()
        if self.ended is not None:
            raise WrongMove("the game is over")
        if option not in legal:
            raise WrongMove(f"option {option} is not legal; legal are {', '.join(map(str, legal))}")
        self._go_on({self._head: np.array([option], np.int32)})

    def tick(self, orders: Sequence[Any]) -> None:
        """Of a game in real time: takes orders, and lets one tick pass."""
        if self._commander is None:
            raise WrongMove(f"{self.spec.name} is not played in real time")
        if self.ended is not None:
            raise WrongMove("the game is over")
        try:
            self._commander.give(orders)
        except ValueError as error:
            raise WrongMove(str(error)) from error
        self._ordered = self._ordered or bool(orders)
        kind = self.spec.kinds[self.spec.seats[self.seat]]
        action, self._missed = self._commander.decide(kind.action.arrays)
        self._go_on(action)

    def _go_on(self, action: Tree | None) -> None:
        """Until the person must decide, or the game is over."""
        view = self._tables.view
        if action is not None:
            illegal = first_illegal(self._rows(), action)
            if illegal is not None:
                raise WrongMove(illegal[1])
        while not (view.over[0] or view.truncated[0]):
            acting = np.flatnonzero(view.to_act[0]).tolist()
            if self.seat in acting and action is None:
                self._thoughts.of_person = self._agent.look(self._tables, self.seat)
                return
            self._step(acting, action)
            action = None
        assert self._recording is not None
        self.ended = Ended(
            score=tuple(view.score[0].tolist()),
            recording=self._recording,
            decisions=tuple(self._decisions),
        )

    def _step(self, acting: Sequence[Seat], action: Tree | None) -> None:
        others = [seat for seat in acting if seat != self.seat]
        decided = self._agent.decide(self._tables, others)
        chosen: dict[Seat, Tree] = {seat: tree for seat, (tree, _) in decided.items()}
        for seat, (tree, opinion) in decided.items():
            self._thoughts.of_agent = opinion
            self._thoughts.agent_chose = int(next(iter(tree.values())).flat[0])
            self._thoughts.of_options = self._view.options(self._plain, seat)
        if action is not None:
            chosen[self.seat] = action
        for seat, tree in chosen.items():
            kind, column = self.spec.seats[seat], self.spec.column_of_seat[seat]
            for head, array in self._actions[kind].items():
                array[0, column] = tree[head][0]
            self._decisions[seat] += 1
        self._tables.step(self._actions)
        if reason := lost_tables(self._tables).get(0):
            raise GameError(f"{self.spec.name}: the table was lost: {reason}")
        if len(chosen) == 1:
            (tree,) = chosen.values()
            self._latest = int(next(iter(tree.values())).flat[0])

    # --- what is shown ---

    def show(self, *, thoughts: bool = False) -> dict[str, Any]:
        """What the person may know, as plain values. After the end that is everything."""
        shown: dict[str, Any] = {
            "game": self.spec.name,
            "seat": self.seat,
            "team": self.spec.teams[self.seat],
            "over": self.ended is not None,
            "score": None if self.ended is None else list(self.ended.score),
            "decisions": sum(self._decisions),
            "real_time": self._view.real_time,
            "options": [{"option": option, "name": name} for option, name in self.options().items()],
            "view": self._view.show(self._plain, self._eyes, self._latest),
            "thoughts": self._told_thoughts() if thoughts else None,
        }
        if self._commander is not None:
            shown |= {"waiting": self._commander.waiting, "missed": self._missed}
        return shown

    def written(self) -> str:
        """For a terminal."""
        return self._view.written(self._view.show(self._plain, self._eyes, self._latest))

    @property
    def _eyes(self) -> Seat | None:
        """Whose eyes the person looks through."""
        return self.seat if self.ended is None else None

    def _told_thoughts(self) -> dict[str, Any]:
        """What the agent thinks, but nothing that would tell what only it can see: its opinion of its own
        place waits for the end where seats may see different things, and so does a value that comes from a
        critic that sees more than its seat."""
        told: dict[str, Any] = {"thinks": self._agent.thinks, "yours": None, "its": None}
        mine, its = self._thoughts.of_person, self._thoughts
        if mine is not None and self.ended is None:
            names = self._view.options(self._plain, self.seat)
            told["yours"] = _told(mine, names, with_value=not self._critic_sees_more(self.seat))
        if its.of_agent is not None and (self.ended is not None or not self._view.hides):
            told["its"] = _told(its.of_agent, its.of_options, with_value=True) | {"chose": its.agent_chose}
        return told

    def _critic_sees_more(self, seat: Seat) -> bool:
        return bool(self.spec.kinds[self.spec.seats[seat]].observation.critic)

    # --- details ---

    @property
    def _head(self) -> str:
        """The first head: of a game with one choice a turn, its only one."""
        return next(iter(self.spec.kinds[self.spec.seats[self.seat]].action.heads))

    def _rows(self) -> Rows:
        return Rows.of(self._tables, TABLE, np.array([self.seat]))

    def _keep(self, recording: Recording) -> None:
        self._recording = recording


def _told(opinion: Opinion, names: Sequence[str], *, with_value: bool) -> dict[str, Any]:
    return {
        "value": round(opinion.value, 4) if with_value else None,
        "options": [
            {
                "option": option,
                "name": names[option] if option < len(names) else str(option),
                "p": round(p, 4),
            }
            for option, p in enumerate(opinion.probabilities)
        ],
    }


def _game_itself(tables: GameBatch) -> GameBatch:
    """The innermost game's tables: what is wrapped around them changes what a player sees, not the table."""
    around: Any = tables
    while not isinstance(around, RecordedTables):
        around = around.game
    return around.game

"""One table of any game with the interface of a plain `Game`: for scripts, notebooks and tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from ludus.data.specs import CRITIC_PREFIX, GameSpec
from ludus.data.trees import Tree, take
from ludus.games.game import Action, GameSource, Legal, Observation, Seat, Turn, allocate_actions

_TABLE = np.array([0])


class Table:
    """A `Game` that plays one table of a `GameSource`.

        with Table(ConnectFour()) as table:
            turn = table.reset(seed=0)
            while not (turn.over or turn.truncated):
                turn = table.step({seat: choose(seat, turn) for seat in turn.observations})

    It is the opposite of `Lifted`. Many tables at once are faster: see `GameSource.tables`.
    """

    def __init__(self, source: GameSource) -> None:
        self._tables = source.tables(1)

    @property
    def spec(self) -> GameSpec:
        return self._tables.spec

    def reset(self, seed: int) -> Turn:
        """Start an episode."""
        self._tables.reset(_TABLE, np.array([seed], np.uint64))
        return self._turn()

    def step(self, actions: Mapping[Seat, Action]) -> Turn:
        """Play the actions of the seats that must act: an int each, or head name to int or array."""
        view, spec = self._tables.view, self.spec
        arrays = allocate_actions(spec, 1)
        waiting = np.flatnonzero(view.to_act[0]).tolist()
        if set(actions) != set(waiting):
            raise ValueError(f"{spec.name}: seats {waiting} must act, got actions of seats {sorted(actions)}")
        for seat, action in actions.items():
            heads = arrays[spec.seats[seat]]
            given = action if isinstance(action, Mapping) else {next(iter(heads)): action}
            if set(given) != set(heads):
                raise ValueError(f"{spec.name}, seat {seat}: an action has the heads {list(heads)}, got {list(given)}")
            for name, value in given.items():
                heads[name][0, spec.column_of_seat[seat]] = value
        self._tables.step(arrays)
        return self._turn()

    def close(self) -> None:
        self._tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _turn(self) -> Turn:
        """A copy of what the table shows, which stays as it is after the next step."""
        view, spec = self._tables.view, self.spec
        over, truncated = bool(view.over[0]), bool(view.truncated[0])
        shown = range(spec.num_seats) if truncated else np.flatnonzero(view.to_act[0]).tolist()
        observations: dict[Seat, Observation] = {}
        legal: dict[Seat, Legal] = {}
        for seat in shown:
            kind, column = spec.seats[seat], spec.column_of_seat[seat]
            seen = take(view.observation[kind], (0, column, ...))
            observations[seat] = _alone(
                {name: array.copy() for name, array in seen.items() if not name.startswith(CRITIC_PREFIX)}
            )
            masks = {name: array.copy() for name, array in take(view.legal[kind], (0, column, ...)).items()}
            if masks:
                legal[seat] = _alone(masks) if len(spec.kinds[kind].action.heads) == 1 else masks
        return Turn(
            observations=observations,
            legal=legal,
            reward=view.reward[0].tolist(),
            over=over,
            truncated=truncated,
            score=view.score[0].tolist() if over or truncated else None,
            clock=int(view.clock[0]),
        )


def _alone(tree: Tree) -> Observation:
    """The array itself where there is only one."""
    return next(iter(tree.values())) if len(tree) == 1 else tree

"""Duels: two engines a table, each in a process of its own, stepped side by side tic by tic."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import GameSpec
from ludus.data.trees import IntArray, put, take
from ludus.games.adapters.vizdoom import ViZDoom
from ludus.games.adapters.vizdoom_engine import SCREEN_PART, STATUS_PART
from ludus.games.adapters.vizdoom_table import REST, RUN, SHOW, Place
from ludus.games.game import Actions, Seat, TableView, allocate_actions

_SEATS = 2


class DuelTables:
    """A `GameBatch`. Its players are the tables of another one: those of table t are 2t, who hosts the duel,
    and 2t + 1. Where one of them is lost, so is the duel."""

    def __init__(self, source: ViZDoom, num_tables: int) -> None:
        self.spec: GameSpec = source.spec
        self.num_tables = num_tables
        self.view = TableView.allocate(self.spec, num_tables)
        self.lost: Mapping[int, str] = {}
        self._frame_skip = source.frame_skip
        self._length = self.spec.max_length - 1
        self._steps = np.zeros(num_tables, np.int64)
        self._ports: dict[int, int] = {}
        self._players = source.engines("DuelPlayer", _SEATS * num_tables).tables(_SEATS * num_tables)
        self._orders = allocate_actions(self._players.spec, _SEATS * num_tables)

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        places = []
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            if table not in self._ports:
                self._ports[table] = _free_port()
            port = self._ports[table]
            places += [Place(port, hosts).in_seed(seed) for hosts in (True, False)]
        players = (tables[:, None] * _SEATS + np.arange(_SEATS)).reshape(-1)
        self._players.reset(players, np.array(places, np.uint64))
        view = self.view
        view.over[tables] = view.truncated[tables] = False
        view.to_act[tables] = True
        view.reward[tables] = view.score[tables] = 0.0
        self._steps[tables] = 0
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view, orders = self.view, self._orders[0]
        playing = np.flatnonzero(view.to_act[:, 0])
        for head, chosen in actions[0].items():
            orders[head][:] = chosen.reshape(-1, 1)
        order = orders["tic"].reshape(self.num_tables, _SEATS)
        frags = np.zeros((self.num_tables, _SEATS))
        for tic in range(self._frame_skip):
            order[:] = REST
            order[playing] = SHOW if tic == self._frame_skip - 1 else RUN
            self._players.step(self._orders)
            frags += self._players.view.reward.reshape(frags.shape)
        view.reward[playing] = (frags - frags[:, ::-1])[playing]
        view.score[playing] += view.reward[playing]
        self._steps[playing] += 1
        ended = playing[self._steps[playing] >= self._length]
        view.over[ended] = True
        view.to_act[ended] = False
        self._show(playing)

    def close(self) -> None:
        self._players.close()

    def render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        """What the seat sees; None: both, side by side."""
        seats = range(_SEATS) if seat is None else (seat,)
        screens = [self.view.observation[0][SCREEN_PART][table, shown] for shown in seats]
        picture = np.concatenate(screens, axis=2).transpose(1, 2, 0)
        return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))

    def _show(self, tables: IntArray) -> None:
        """What the players of these tables see, and which duels are lost."""
        shown = self.view.observation[0]
        for seat in range(_SEATS):
            seen = take(self._players.view.observation[0], (tables * _SEATS + seat, 0))
            put(shown, (tables, seat), seen)
        shown[STATUS_PART][tables, :, -1] = (1.0 - self._steps[tables] / self._length)[:, None]
        reasons = getattr(self._players, "lost", {})
        if not reasons and not self.lost:
            return
        self.lost = {player // _SEATS: reason for player, reason in reasons.items()}
        for table in self.lost:
            self._ports.pop(table, None)  # its players meet elsewhere, which makes both start anew
            self.view.to_act[table] = self.view.over[table] = False
            self.view.reward[table] = 0.0


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""How rank 0 of the learner leads the others: orders one way, what waits there the other way."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from ludus.runtime.process import PeerGone, receive, send
from ludus.runtime.rank_messages import Standing, ToRank
from ludus.workers.ranks import RankLost, Rendezvous


class RankWires:
    """What the ranks of one start need to find each other. The launcher's: ranks inherit the descriptors."""

    def __init__(self, count: int) -> None:
        self._rendezvous = Rendezvous() if count > 1 else None
        pairs = [socket.socketpair() for _ in range(count - 1)]
        self._sockets = [[leading for leading, _ in pairs], *([following] for _, following in pairs)]

    @property
    def address(self) -> str:
        return "" if self._rendezvous is None else self._rendezvous.address

    def of(self, rank: int) -> tuple[int, ...]:
        """The descriptors of its sockets."""
        return tuple(one.fileno() for one in self._sockets[rank])

    def handed_over(self, rank: int) -> None:
        """The rank has its sockets: kept open here, they would hide that it has died."""
        for one in self._sockets[rank]:
            one.close()
        self._sockets[rank] = []

    def close(self) -> None:
        for rank in range(len(self._sockets)):
            self.handed_over(rank)
        self._rendezvous = None


class Followers:
    """Rank 0's way to the other ranks; there may be none."""

    def __init__(self, links: Sequence[Connection], patience_s: float) -> None:
        self.links = list(links)
        self._patience_s = patience_s
        self._orders = 0
        self._standings: dict[int, Standing] = {}

    def order(self, order: ToRank) -> None:
        """Let all do this, as this rank does it now."""
        self._orders += 1
        for link in self.links:
            _say(link, order)

    def standings(self) -> list[Standing]:
        """Of the ranks that have obeyed all orders; nothing is known of the others for now."""
        self.take_in()
        return [one for one in self._standings.values() if one.orders == self._orders]

    def wait(self) -> None:
        """Until all orders are obeyed."""
        deadline = time.monotonic() + self._patience_s
        while len(self.standings()) < len(self.links):
            if time.monotonic() > deadline:
                raise RankLost(f"another rank of the learner did not answer for {self._patience_s:.0f} s")
            for link in self.links:
                if link.poll(0.01):
                    break

    def take_in(self) -> None:
        for number, link in enumerate(self.links):
            while link.poll(0):
                self._standings[number] = _hear(link, Standing)


class Leader:
    """Another rank's way to rank 0."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self._obeyed = 0
        self._told: Standing | None = None

    def next_order(self) -> ToRank | None:
        """None: there is none now."""
        order: ToRank | None = _hear(self.link, ToRank) if self.link.poll(0) else None
        self._obeyed += order is not None
        return order

    def tell(self, standing: Standing) -> None:
        """After all orders so far are obeyed; said only if it is news."""
        standing = msgspec.structs.replace(standing, orders=self._obeyed)
        if standing != self._told:
            _say(self.link, standing)
            self._told = standing


def _say(link: Connection, message: msgspec.Struct) -> None:
    try:
        send(link, message)
    except PeerGone as error:
        raise RankLost(f"another rank of the learner is gone: {error}") from error


def _hear(link: Connection, kind: Any) -> Any:
    try:
        return receive(link, kind)
    except PeerGone as error:
        raise RankLost(f"another rank of the learner is gone: {error}") from error

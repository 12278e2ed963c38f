"""A site as an actor of Ray. What goes in and out is bytes, numbers and plain arrays."""

from __future__ import annotations

from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from ludus.cluster.parcel import Parcel
from ludus.cluster.site import Site
from ludus.cluster.site_messages import LayOut, SiteFacts, SiteOrder
from ludus.cluster.traffic import Delivery, Peer, PeerLost, Ticket, Update
from ludus.local.launcher import SpawnOrder

NAMESPACE = "ludus"
ENCODE = msgspec.msgpack.encode
DECODE = msgspec.msgpack.decode


GROUPS = {"poll": "news", "deliver": "traffic", "update": "traffic"}
"""Calls of one group are done in order, one at a time; those that are not named here are one group too."""


class SiteActor:
    """What Ray calls."""

    def __init__(self) -> None:
        self._site: Site | None = None

    @property
    def site(self) -> Site:
        if self._site is None:
            raise RuntimeError("the site has not begun")
        return self._site

    def facts(self, run: str, facts: bytes) -> tuple[str, bytes]:
        """The node that it is on, and what is there."""
        return ray.get_runtime_context().get_node_id(), ENCODE(SiteFacts.here(run, facts))

    def begin(self, order: bytes) -> None:
        self._site = Site(DECODE(order, type=SiteOrder), RayPeer)

    def lay_out(self, order: bytes) -> None:
        self.site.lay_out(DECODE(order, type=LayOut))

    def reserve(self, places: list[int]) -> None:
        self.site.reserve(places)

    def spawn(self, order: bytes, epoch: int) -> int:
        return self.site.spawn(DECODE(order, type=SpawnOrder), epoch)

    def kill(self, name: str, epoch: int) -> None:
        self.site.kill(name, epoch)

    def tell(self, name: str, epoch: int, content: bytes) -> None:
        self.site.tell(name, epoch, content)

    def keep_model(self, model: str, variant: Any, head: bytes | None, body: Any, most: int) -> None:
        self.site.keep_model(model, variant, None if head is None else Parcel(head, body), most)

    def pause(self, paused: bool) -> None:
        self.site.pause(paused)

    def admit(self, actor: int, epoch: int, site: str) -> None:
        self.site.admit(actor, epoch, site)

    def refuse(self, actor: int) -> None:
        self.site.refuse(actor)

    def absent(self, actor: int) -> None:
        self.site.absent(actor)

    def know(self, site: str) -> None:
        self.site.know(site)

    def close(self) -> None:
        if self._site is not None:
            self._site.close()

    def poll(self) -> bytes:
        return ENCODE(self.site.poll())

    def deliver(self, delivery: bytes, head: bytes, body: Any) -> bool:
        return self.site.deliver(DECODE(delivery, type=Delivery), Parcel(head, body))

    def update(self, update: bytes, head: bytes | None, body: Any) -> bool:
        weights = None if head is None else Parcel(head, body)
        return self.site.update(DECODE(update, type=Update), weights)


SITE: Any = ray.remote(max_restarts=0, concurrency_groups={"news": 1, "traffic": 1})(SiteActor)


class RayTicket:
    """A call of Ray's."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def answer(self) -> bool | None:
        ready, _ = ray.wait([self._call], timeout=0)
        if not ready:
            return None
        try:
            return bool(ray.get(self._call))
        except RayError as error:
            raise PeerLost(str(error)) from error


def _in_order(method: Any) -> Any:
    return method.options(concurrency_group="traffic")


class RayPeer(Peer):
    """Another site, by its name."""

    def __init__(self, name: str) -> None:
        try:
            self._actor = ray.get_actor(name, NAMESPACE)
        except ValueError as error:
            raise PeerLost(str(error)) from error

    def deliver(self, delivery: Delivery, parcel: Parcel) -> Ticket:
        return RayTicket(_in_order(self._actor.deliver).remote(ENCODE(delivery), parcel.head, parcel.body))

    def update(self, update: Update, weights: Any) -> Ticket:
        head, body = (None, None) if weights is None else weights
        return RayTicket(_in_order(self._actor.update).remote(ENCODE(update), head, body))

    def share(self, parcel: Parcel) -> Any:
        return parcel.head, ray.put(parcel.body)

"""The ranks of a learner: processes that train the same players. Sums and gathered values are equal in all ranks."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
import torch.distributed
from torch import Tensor

from ludus.data.batch import Batch
from ludus.data.trajectory import SlotPool
from ludus.system.network import find_interface
from ludus.workers.messages import Configure, Forget, Request, ResetWeights

SMALL_MESSAGE = 512
"""Bytes that one gather sends; longer messages need a second one."""
LOOPBACK = "127.0.0.1"
_LENGTH = 4
"""Bytes of the length of a message."""
_distributed: Any = torch.distributed
"""Untyped. Groups are made from its parts: `init_process_group` would make one for the whole process."""


class RankLost(RuntimeError):  # noqa: N818
    """Another rank has died or is silent. The controller then ends this one too."""


class Ranks(Protocol):
    """Collective operations. All ranks must call the same ones in the same order."""

    rank: int
    count: int
    local_rank: int
    """Number of this rank among those of its node."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank: numbers, text, and lists and dicts of them."""

    def share(self, content: bytes) -> bytes:
        """The content that rank 0 has, in all ranks."""


class _Alone:
    rank = 0
    count = 1
    local_rank = 0

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def share(self, content: bytes) -> bytes:
        return content


ALONE: Ranks = _Alone()
"""The ranks of a learner with one process."""


class Rendezvous:
    """A store on a free port at which ranks find each other. It lives as long as this object."""

    def __init__(self, host: str = LOOPBACK) -> None:
        with socket.create_server((host, 0)) as listening:
            # By itself the store would listen on every interface.
            port = listening.getsockname()[1]
            self.address = f"{host}:{port}"
            self._store = _distributed.TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listening.fileno())
            )


class ConnectedRanks:
    """Ranks, on one node or several, that reduce through NCCL if each has its own GPU, and through gloo otherwise."""

    def __init__(
        self,
        address: str,
        rank: int,
        count: int,
        *,
        patience_s: float,
        interface: str | None = None,
        node: str = "",
        find_gpu: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """`address` is that of the `Rendezvous`; without `interface` (a name), the one that leads there is used. `node`
        names where this rank runs; `find_gpu`: the name of the GPU of the rank with this number on its node, if any."""
        self.rank = rank
        self.count = count
        host, _, port = address.rpartition(":")
        chosen = find_interface(interface, host)
        for library in ("GLOO", "NCCL"):
            os.environ[f"{library}_SOCKET_IFNAME"] = chosen
        limit = timedelta(seconds=patience_s)
        self._nccl: Any = None

        def connect() -> Any:
            store = _distributed.TCPStore(host, int(port), is_master=False, timeout=limit)
            named = _distributed.PrefixStore("gloo", store)
            self._gloo = _distributed.ProcessGroupGloo(named, rank, count, timeout=limit)
            return store

        def connect_gpus() -> None:
            options = _distributed.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._nccl = _distributed.ProcessGroupNCCL(_distributed.PrefixStore("nccl", store), rank, count, options)

        store = _together(connect)
        self.local_rank = self.gather(node)[:rank].count(node)
        gpus = self.gather(find_gpu(self.local_rank))
        if None not in gpus and len({*gpus}) == count:
            _together(connect_gpus)

    def sum(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            _together(lambda: self._gloo.allreduce([tensor]).wait())
        elif self._nccl is not None:
            _together(lambda: self._nccl.allreduce([tensor]).wait())
        else:
            tensor.copy_(self.sum(tensor.cpu()))
        return tensor

    def gather(self, value: Any) -> list[Any]:
        own = msgspec.msgpack.encode(value)
        heads = self._gather(len(own).to_bytes(_LENGTH, "little") + own[:SMALL_MESSAGE], _LENGTH + SMALL_MESSAGE)
        lengths = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        rests = [b""] * self.count
        if max(lengths) > SMALL_MESSAGE:
            rests = self._gather(own[SMALL_MESSAGE:], max(lengths) - SMALL_MESSAGE)
        return [
            msgspec.msgpack.decode((head[_LENGTH:] + rest)[:length])
            for head, rest, length in zip(heads, rests, lengths, strict=True)
        ]

    def share(self, content: bytes) -> bytes:
        size = self.gather(len(content))[0]
        shared = torch.zeros(size, dtype=torch.uint8)
        if self.rank == 0 and size:
            shared.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return self.sum(shared).numpy().tobytes()

    def _gather(self, content: bytes, size: int) -> list[bytes]:
        own = torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.count)]
        _together(lambda: self._gloo.allgather([found], [own]).wait())
        return [one.numpy().tobytes() for one in found]


def _together(work: Callable[[], Any]) -> Any:
    """Run a collective operation. Raises `RankLost` if another rank is gone."""
    try:
        return work()
    except RuntimeError as error:
        raise RankLost(f"another rank of the learner is gone or silent: {error}") from error


class Train(Request, frozen=True, tag="train"):
    """To all ranks: train these players in this order."""

    parts: dict[str, float]
    """By player: the share of the waiting decisions to train on, the newest first."""


class Compare(Request, frozen=True, tag="compare"):
    """To all ranks: check that all have the same weights."""


class BufferStatus(msgspec.Struct, frozen=True):
    """The trajectories that wait in a rank."""

    decisions: dict[str, int]
    """By player."""
    held_up: dict[str, list[bool]]
    """By player and actor: whether the actor waits for the learner."""
    present: list[bool] = []
    """By actor: whether it plays for this rank; empty: all do."""
    preparing: list[str] = []
    """Players with trajectories at the buffer worker."""
    orders: int = 0
    """Orders that the rank has obeyed. A status from before the latest order is outdated."""


ToRank = Train | Compare | ResetWeights | Configure | Forget


Seen = Counter[int]
"""The decisions of an update, by the version of the weights that made them."""


def seen_in(batches: Mapping[int, Batch]) -> Seen:
    versions = [batch.version[batch.valid] for batch in batches.values()]
    found, counts = np.unique(np.concatenate(versions or [[]]).astype(np.int64), return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def lags(seen: Seen, version: int, most: int) -> dict[str, float]:
    """Age of the decisions in updates, and the share of each age up to `most`, if that is not 0."""
    ages = {version - one: count for one, count in seen.items()}
    total = max(seen.total(), 1)
    found = {"lag": sum(age * count for age, count in ages.items()) / total, "max_lag": float(max(ages, default=0))}
    if most:
        found |= {f"lag_share.{age}": ages.get(age, 0) / total for age in range(most + 1)}
    return found


class OtherRanks(Protocol):
    """The other ranks, as rank 0 reaches them. They do whatever rank 0 does."""

    def statuses(self) -> Sequence[BufferStatus]: ...
    def order(self, order: Train) -> None: ...


@dataclass
class LeftOut:
    """Numbers of decisions that could not be trained on."""

    stale: int = 0
    refused: int = 0


def joined(statuses: Sequence[BufferStatus]) -> BufferStatus:
    """The status of several ranks, each of which has its own actors."""
    first = statuses[0]
    return BufferStatus(
        decisions={player: sum(one.decisions[player] for one in statuses) for player in first.decisions},
        held_up={
            player: [any(actor) for actor in zip(*(one.held_up[player] for one in statuses), strict=True)]
            for player in first.held_up
        },
        present=[any(actor) for actor in zip(*(one.present for one in statuses), strict=True)],
        preparing=[player for player in first.decisions if any(player in one.preparing for one in statuses)],
    )


def nothing_of(pool: SlotPool) -> Batch:
    """A batch in which nothing is valid."""
    return pool.stack(np.zeros(1, np.int64), oldest_version=np.iinfo(np.int64).max)

"""The ranks of a learner: processes that train the same players, each on its part of every batch. What they
add up and tell each other here comes out the same, bit for bit, in all of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import torch
import torch.distributed
from torch import Tensor

from ludus.runtime.network import find_interface

SMALL_MESSAGE = 512
"""Bytes that travel in one round; what is longer needs a second one."""
LOOPBACK = "127.0.0.1"
_LENGTH = 4
"""Bytes that hold the length of a message."""
_distributed: Any = torch.distributed
"""Groups are made from its parts, not by `init_process_group`: that would be one for the whole process."""


class RankLost(RuntimeError):  # noqa: N818
    """Another rank has died or is silent. Whoever looks after the processes ends this one too."""


class Ranks(Protocol):
    """What all ranks do together: each has to call the same, in the same order."""

    rank: int
    count: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Of this tensor over all ranks, written into it."""

    def gather(self, value: Any) -> list[Any]:
        """What each rank says, in their order: numbers, text, lists and dicts of them."""


class _Alone:
    rank = 0
    count = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE: Ranks = _Alone()
"""Of a learner that is one process."""


class Rendezvous:
    """Where ranks find each other: a store on a free port, which lives as long as this object."""

    def __init__(self, host: str = LOOPBACK) -> None:
        with socket.create_server((host, 0)) as listening:
            # By itself the store would listen on every interface.
            port = listening.getsockname()[1]
            self.address = f"{host}:{port}"
            self._store = _distributed.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(listening.fileno()),
            )


class ConnectedRanks:
    """Ranks that reduce through NCCL where each has a GPU of its own, and through gloo otherwise."""

    def __init__(
        self,
        address: str,
        rank: int,
        count: int,
        *,
        patience_s: float,
        interface: str | None = None,
        gpu_each: bool = False,
    ) -> None:
        """`address` is that of the `Rendezvous`; `patience_s`: how long one rank waits for another before it
        gives up; `interface` is asked for by name (None: the one that leads to the rendezvous)."""
        self.rank = rank
        self.count = count
        host, _, port = address.rpartition(":")
        chosen = find_interface(interface, host)
        for library in ("GLOO", "NCCL"):
            os.environ[f"{library}_SOCKET_IFNAME"] = chosen
        limit = timedelta(seconds=patience_s)
        self._nccl: Any = None

        def connect() -> None:
            store = _distributed.TCPStore(host, int(port), is_master=False, timeout=limit)
            self._gloo = _distributed.ProcessGroupGloo(
                _distributed.PrefixStore("gloo", store), rank, count, timeout=limit
            )
            if gpu_each:
                options = _distributed.ProcessGroupNCCL.Options()
                options._timeout = limit
                named = _distributed.PrefixStore("nccl", store)
                self._nccl = _distributed.ProcessGroupNCCL(named, rank, count, options)

        _together(connect)

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
        heads = self._gather(
            len(own).to_bytes(_LENGTH, "little") + own[:SMALL_MESSAGE], _LENGTH + SMALL_MESSAGE
        )
        lengths = [int.from_bytes(head[:_LENGTH], "little") for head in heads]
        rests = [b""] * self.count
        if max(lengths) > SMALL_MESSAGE:
            rests = self._gather(own[SMALL_MESSAGE:], max(lengths) - SMALL_MESSAGE)
        return [
            msgspec.msgpack.decode((head[_LENGTH:] + rest)[:length])
            for head, rest, length in zip(heads, rests, lengths, strict=True)
        ]

    def _gather(self, content: bytes, size: int) -> list[bytes]:
        own = torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.count)]
        _together(lambda: self._gloo.allgather([found], [own]).wait())
        return [one.numpy().tobytes() for one in found]


def _together(work: Callable[[], Any]) -> None:
    """What other ranks take part in: it fails when one of them is gone."""
    try:
        work()
    except RuntimeError as error:
        raise RankLost(f"another rank of the learner is gone or silent: {error}") from error

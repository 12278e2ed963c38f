"""What the ranks of a learner do together, and what happens when one is missing."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_threads import in_ranks

from ludus.runtime.shared_parts import link_ranks
from ludus.system.process import receive, send
from ludus.workers.ranks import ALONE, ConnectedRanks, RankLost, Ranks, Rendezvous, ToRank, Train

LONG = {"text": "x" * 5_000, "numbers": list(range(300))}


def test_sums_come_out_the_same_in_all() -> None:
    def work(ranks: Ranks) -> torch.Tensor:
        tensor = torch.arange(1_000, dtype=torch.float32) * (ranks.rank + 1) / 3
        assert ranks.sum(tensor) is tensor
        return tensor

    one, other, third = in_ranks(3, work)
    assert torch.equal(one, other)
    assert torch.equal(one, third)
    torch.testing.assert_close(one, torch.arange(1_000, dtype=torch.float32) * 2)


@pytest.mark.parametrize("values", [([], {"a": 1.5}), (LONG, None), ([1], LONG)])
def test_each_hears_what_all_say(values: tuple[Any, Any]) -> None:
    assert in_ranks(2, lambda ranks: ranks.gather(values[ranks.rank])) == [list(values)] * 2


def test_what_rank_0_has_reaches_all() -> None:
    content = bytes(range(256)) * 10
    assert in_ranks(3, lambda ranks: ranks.share(b"" if ranks.rank else content)) == [content] * 3
    assert in_ranks(2, lambda ranks: ranks.share(b"mine" if ranks.rank else b"")) == [b""] * 2
    assert ALONE.share(b"x") == b"x"


def test_ranks_are_numbered_on_each_node() -> None:
    rendezvous, nodes = Rendezvous(), ["a", "b", "a", "b"]

    def connect(rank: int) -> tuple[int, int]:
        asked: list[int] = []
        ranks = ConnectedRanks(
            rendezvous.address, rank, 4, patience_s=30, node=nodes[rank], find_gpu=lambda one: asked.append(one)
        )
        return ranks.local_rank, *asked

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(connect, range(4))) == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_every_rank_is_linked_to_the_first_and_nobody_else_is() -> None:
    def work(ranks: Ranks) -> list[str]:
        links = link_ranks(ranks, "127.0.0.1", 10.0)
        for link in links:
            send(link, Train({str(ranks.rank): 1.0}))
        heard = [next(iter(receive(link, ToRank).parts)) for link in links]
        for link in links:
            link.close()
        return heard

    def intruding(ranks: Ranks) -> list[str]:
        if ranks.rank == 2:  # knows the port, and not the token
            port, _ = ranks.gather(None)[0]
            with socket.create_connection(("127.0.0.1", port), 10.0) as stranger:
                stranger.sendall(b"x" * 36)
                assert stranger.recv(1) == b""
            return []
        with pytest.raises(RankLost, match="cannot connect") if ranks.rank == 0 else nullcontext():
            for link in link_ranks(ranks, "127.0.0.1", 1.0):
                link.close()
        return []

    assert in_ranks(3, work) == [["1", "2"], ["0"], ["0"]]
    assert link_ranks(ALONE, "", 1.0) == []
    in_ranks(3, intruding)


def test_alone_there_is_nothing_to_add() -> None:
    tensor = torch.ones(3)
    assert ALONE.sum(tensor) is tensor
    assert ALONE.gather({"a": 1}) == [{"a": 1}]


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever() -> None:
    connected = threading.Event()

    def work(ranks: Ranks) -> float:
        if ranks.rank == 1:
            connected.wait(30)  # who leaves earlier is lost while they still connect
            return 0.0
        connected.set()
        began = time.monotonic()
        with pytest.raises(RankLost, match="another rank of the learner is gone or silent"):
            ranks.sum(torch.ones(3))
        return time.monotonic() - began

    assert in_ranks(2, work, patience_s=1.0)[0] < 30


def test_nobody_to_meet() -> None:
    rendezvous = Rendezvous()
    with pytest.raises(RankLost):
        ConnectedRanks(rendezvous.address, 0, 2, patience_s=0.5)


def test_everything_listens_on_loopback_only() -> None:
    """By the kernel's table of sockets."""

    def work(ranks: Ranks) -> set[str]:
        ranks.sum(torch.ones(1))
        return _listening_addresses()

    addresses = set.union(*in_ranks(2, work))
    assert addresses == {"127.0.0.1"}


def _listening_addresses() -> set[str]:
    """Where sockets of this process listen."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except FileNotFoundError:  # the one of this very look
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                words = bytes.fromhex(fields[1].partition(":")[0])
                found.add(".".join(map(str, reversed(words))) if table == "tcp" else words.hex())
    return found

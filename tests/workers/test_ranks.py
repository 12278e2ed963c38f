"""What the ranks of a learner do together, and what happens when one is missing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_threads import in_ranks

from ludus.workers.ranks import ALONE, ConnectedRanks, RankLost, Ranks, Rendezvous

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

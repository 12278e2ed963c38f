"""Ranks as threads of one process, connected as those of a learner are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ludus.workers.ranks import ConnectedRanks, Ranks, Rendezvous

T = TypeVar("T")


def in_ranks(count: int, work: Callable[[Ranks], T], patience_s: float = 30.0) -> list[T]:
    """What `work` gives in each of them."""
    rendezvous = Rendezvous()

    def run(rank: int) -> T:
        return work(ConnectedRanks(rendezvous.address, rank, count, patience_s=patience_s))

    with ThreadPoolExecutor(count) as pool:
        return [done.result() for done in [pool.submit(run, rank) for rank in range(count)]]

"""Writes matches into a ledger as fast as it can and prints each group once it is acknowledged."""

from __future__ import annotations

import resource
import signal
import sys

from ludus.data.records import AnyEvent, Match, MatchFinished, MatchIssued, MatchLeased, Pair, Result, Side
from ludus.store.ledger import Ledger, LedgerError

SIDES = (Side(("main",)), Side(("rival",)))


def group(first: int, matches: int) -> list[AnyEvent]:
    """Issues and leases `matches` matches, and finishes all but the last."""
    events: list[AnyEvent] = []
    for number in range(first, first + matches):
        events += [MatchIssued(Match(number, "training", SIDES, 1, 2)), MatchLeased(number, "actor-0")]
        if number != first + matches - 1:
            result = Result(number, 2, 9, (5, 4), (Pair(0, 1, 1, 0, 1),), (1.0, 1.0), (1.0, 1.0), (), ())
            events.append(MatchFinished(result))
    return events


def write_until_killed(path: str) -> None:
    ledger = Ledger(path)
    ledger.void_open("restart")
    while True:
        acknowledged = ledger.append(group(ledger.next_match_id(), matches=4))
        print(acknowledged[-1], flush=True)


def write_on_a_full_disk(path: str) -> None:
    """Lets the disk fill up under an open ledger, then frees it again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = Ledger(path)
    ledger.append(group(1, matches=4))
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    acknowledged = 0
    try:
        while True:
            acknowledged = ledger.append(group(ledger.next_match_id(), matches=50))[-1]
    except LedgerError as error:
        print(error)
    print(acknowledged, ledger.counts().total())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(ledger.append(group(ledger.next_match_id(), matches=1))[0])


if __name__ == "__main__":
    {"killed": write_until_killed, "full": write_on_a_full_disk}[sys.argv[1]](sys.argv[2])

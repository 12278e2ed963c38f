"""Waits until a cluster has its nodes: what a job runs before its training, which has room for twice as many
actors as it begins with.

    python -m ludus.cluster.gathering ADDRESS NODES
"""

from __future__ import annotations

import sys
import time

from ludus.cluster.connection import join

WAIT_S = 300.0


def gather(address: str, expected: int, wait_s: float = WAIT_S) -> int:
    """How many nodes there are once all are there, or the time is over: one that is late may still join the
    run."""
    leave = join(address, None)
    try:
        import ray

        until = time.monotonic() + wait_s
        while True:
            found: int = sum(node["Alive"] for node in ray.nodes())
            if found >= expected or time.monotonic() > until:
                return found
            time.sleep(1.0)
    finally:
        leave()


def main() -> None:
    address, expected = sys.argv[1], int(sys.argv[2])
    found = gather(address, expected)
    if found < expected:
        print(
            f"only {found} of {expected} nodes have come within {WAIT_S:g} s; the training begins with them"
        )


if __name__ == "__main__":
    main()

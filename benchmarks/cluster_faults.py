"""A run on three nodes of this machine: one is killed, another joins. How long until the throughput is what
the nodes that are there can do?

python benchmarks/cluster_faults.py                about seven minutes
python benchmarks/cluster_faults.py --seconds 10   to see that it runs; writes no report

All nodes share the cores of this machine, so that with a usual game a node less would cost nothing. Here each
step of the game waits, as for an engine elsewhere: what a node can do follows from its actors alone, and the
cores are mostly idle. What two nodes can do is measured before anything happens to them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from _report import parser, write

from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.runtime.ray.loopback import LoopbackCluster
from ludus.store.run_folder import RunFolder, read_metrics

QUOTED_SECONDS = 60.0
BACK, WITHIN_S = 0.9, 60.0
"""The throughput must be back to so much within so long."""
WINDOW_S = 10.0
SETTLE_S = 20.0
"""Of a change, until a steady state is measured."""
RUN = f"{Path(__file__).with_name('_waiting_game.py')}:experiment"


class Meter(threading.Thread):
    """What the run says, by the time when it says it: once a second."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self._process = process
        self.seen: list[tuple[float, float, float]] = []
        """(time, decisions, nodes)"""
        self.start()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            numbers = json.loads(line)
            if "decisions" in numbers:
                nodes = numbers.get("cluster/nodes", 0)
                self.seen.append((time.monotonic(), numbers["decisions"], nodes))

    def wait(self, nodes: int, most_s: float = 180.0) -> float:
        """When the run first has so many nodes."""
        deadline = time.monotonic() + most_s
        while not self.seen or self.seen[-1][2] != nodes:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"the run never had {nodes} nodes: {self.seen[-1:]}")
            time.sleep(0.1)
        return time.monotonic()

    def rate(self, start: float, end: float) -> float:
        """Decisions a second between two times."""
        inside = [one for one in self.seen if start <= one[0] <= end]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def steady(self, seconds: float) -> float:
        """What is learned from now on, once a change has settled."""
        time.sleep(min(SETTLE_S, seconds) + seconds)
        return self.rate(time.monotonic() - seconds, time.monotonic())

    def slowest(self, start: float, end: float) -> float:
        """Of all windows that begin and end between two times."""
        begins = [when for when, _, _ in self.seen if start <= when <= end - WINDOW_S]
        return min((self.rate(when, when + WINDOW_S) for when in begins), default=0.0)

    def back_after(self, since: float, wanted: float) -> float:
        """Seconds until a window begins in which as much is learned as wanted."""
        for when, _, _ in self.seen:
            is_whole = when + WINDOW_S <= self.seen[-1][0]
            if when >= since and is_whole and self.rate(when, when + WINDOW_S) >= wanted:
                return when - since
        return float("inf")


def ends(path: Path) -> Iterator[tuple[str, str]]:
    """Of the matches: issued, finished, void, and those with not exactly one end."""
    counts: Counter[str] = Counter()
    ended: Counter[int] = Counter()
    with RunFolder.open(path).ledger(read_only=True) as ledger:
        for _, event in ledger.replay():
            if isinstance(event, MatchIssued):
                counts["issued"] += 1
            elif isinstance(event, MatchFinished):
                counts["finished"] += 1
                ended[event.result.match_id] += 1
            elif isinstance(event, MatchVoid):
                counts["void"] += 1
                ended[event.match_id] += 1
    wrong = counts["issued"] - len(ended) + sum(count - 1 for count in ended.values())
    yield from ((name, f"{count:,}") for name, count in counts.items())
    yield "lost or counted twice", str(wrong)


def measure(nodes: LoopbackCluster, meter: Meter, seconds: float) -> tuple[list[list[str]], list[list[str]]]:
    """Throughput in each state, and how long the changes between them took."""
    meter.wait(2)
    two = meter.steady(seconds)
    third = nodes.add(1)["number"]
    meter.wait(3)
    three = meter.steady(seconds)
    killed = time.monotonic()
    nodes.kill(third)
    noticed = meter.wait(2)
    left = meter.steady(seconds)
    joined = time.monotonic()
    nodes.add(1)
    took_part = meter.wait(3)
    again = meter.steady(seconds)
    slowest = meter.slowest(killed, killed + WITHIN_S)
    rates = [
        ["two nodes", f"{two:,.0f}", ""],
        ["three nodes", f"{three:,.0f}", f"{three / two:.0%} of two"],
        ["the minute after one was killed", f"{meter.rate(killed, killed + WITHIN_S):,.0f}", ""],
        [f"the slowest {WINDOW_S:.0f} s of it", f"{slowest:,.0f}", f"{slowest / two:.0%} of two before"],
        ["the two nodes left", f"{left:,.0f}", f"{left / two:.0%} of two before"],
        ["three nodes again", f"{again:,.0f}", f"{again / three:.0%} of three before"],
    ]
    after_kill, after_join = meter.back_after(killed, BACK * two), meter.back_after(joined, BACK * three)
    times = [
        ["killed: the run says that it has two nodes", f"{noticed - killed:.1f} s", ""],
        [f"killed: {BACK:.0%} of what two nodes can do", f"{after_kill:.1f} s", _verdict(after_kill)],
        ["asked to join: the run says that it has three nodes", f"{took_part - joined:.1f} s", ""],
        [f"asked to join: {BACK:.0%} of what three nodes can do", f"{after_join:.1f} s", _verdict(after_join)],
    ]
    return rates, times


def _verdict(after: float) -> str:
    return f"{'within' if after <= WITHIN_S else 'NOT within'} {WITHIN_S:.0f} s"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="of each state")
    seconds = options.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, LoopbackCluster(2, 1) as nodes:
        path = Path(folder) / "run"
        program = [sys.executable, "-m", "ludus.cli.main", "train", RUN, "--runtime", "ray", "--json"]
        program += ["--address", nodes.address, "--run", str(path)]
        program += ["--set", "budget=1000000000", "--set", "cluster.shared_folder=false"]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, env={**nodes.environment, "OMP_NUM_THREADS": "1"}
        ) as process:
            try:
                rates, times = measure(nodes, Meter(process), seconds)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(120)
        matches = [list(row) for row in ends(path)]
        faults = Counter(row["class"] for row in read_metrics(path / "metrics" / "faults.jsonl")[0])
    write(
        "cluster-faults",
        "Nodes that are killed and join",
        [
            ("Decisions a second", ("state", "learned", "compared"), rates),
            ("Seconds", ("from, to", "took", "bar"), times),
            ("Matches", ("what", "number"), matches),
            ("Faults", ("class", "number"), [[name, str(count)] for name, count in faults.items()]),
        ],
        facts={"nodes": "loopback; the learner and an actor on the head, an actor on each other"},
        notes=[
            "Each step of the game waits 40 ms, as for an engine elsewhere: what a node can do follows from "
            f"its actors, not from the cores that all nodes share. Windows of {WINDOW_S:.0f} s; that a node "
            "joins includes the start of its Ray processes.",
            "It only plays itself: in a league that grows, more and more matches train one side only, and "
            "what is learned a second falls for that reason alone.",
        ],
        keep=seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()

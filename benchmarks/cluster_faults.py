"""A run on three nodes of this machine: one is killed, another joins. How long until the throughput is back?

python benchmarks/cluster_faults.py                about six minutes
python benchmarks/cluster_faults.py --seconds 10   to see that it runs; writes no report
"""

from __future__ import annotations

import json
import os
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

from ludus.cluster.loopback import LoopbackCluster
from ludus.data.records import MatchFinished, MatchIssued, MatchVoid
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder

QUOTED_SECONDS = 60.0
BACK = 0.9
WITHIN_S = 60.0


class Meter(threading.Thread):
    """What the run says, by the time when it says it."""

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

    def wait(self, nodes: int, most_s: float = 180.0) -> None:
        deadline = time.monotonic() + most_s
        while not self.seen or self.seen[-1][2] != nodes:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"the run never had {nodes} nodes: {self.seen[-1:]}")
            time.sleep(0.1)

    def rate(self, start: float, end: float) -> float:
        """Decisions a second between two times."""
        inside = [one for one in self.seen if start <= one[0] <= end]
        if len(inside) < 2:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def back_after(self, since: float, wanted: float, window_s: float = 5.0) -> float:
        """Seconds until a window begins in which as much is learned as wanted."""
        for when, _, _ in self.seen:
            if when >= since and self.rate(when, when + window_s) >= wanted:
                return when - since
        return float("inf")


def ends(path: Path) -> Iterator[tuple[str, str]]:
    """Of the matches: issued, finished, void, open, and those with not exactly one end."""
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


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=QUOTED_SECONDS, help="between two events")
    options.add_argument("--recipe", default="connect_four")
    arguments = options.parse_args()
    seconds = arguments.seconds
    with tempfile.TemporaryDirectory() as folder, LoopbackCluster(1, 1, 1) as nodes:
        path = Path(folder) / "run"
        program = [sys.executable, "-m", "ludus.cli.main", "train", arguments.recipe, "--runtime", "ray"]
        program += ["--address", nodes.address, "--run", str(path), "--json"]
        program += ["--set", "budget=1000000000", "--set", "cluster.shared_folder=false"]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, env={**nodes.environment, "OMP_NUM_THREADS": "1"}
        ) as process:
            meter = Meter(process)
            meter.wait(3)
            time.sleep(10.0 + seconds)
            killed = time.monotonic()
            three = meter.rate(killed - seconds, killed)
            nodes.kill(2)
            meter.wait(2)
            noticed = time.monotonic()
            time.sleep(WITHIN_S + seconds)
            two = meter.rate(noticed + WITHIN_S, time.monotonic())
            after_kill = meter.back_after(killed, BACK * two)
            joined = time.monotonic()
            nodes.add(1)
            meter.wait(3)
            has_joined = time.monotonic()
            time.sleep(WITHIN_S + seconds)
            again = meter.rate(has_joined + WITHIN_S, time.monotonic())
            after_join = meter.back_after(joined, BACK * again)
            process.send_signal(signal.SIGINT)
            process.wait(120)
        matches = [list(row) for row in ends(path)]
        faults = Counter(row["class"] for row in read_metrics(path / "metrics" / "faults.jsonl")[0])
    speeds = [
        ["three nodes", f"{three:,.0f}", ""],
        ["a node is killed: noticed after", f"{noticed - killed:.1f} s", ""],
        ["two nodes, a minute later", f"{two:,.0f}", f"{BACK:.0%} of it after {after_kill:.1f} s"],
        ["a node joins: takes part after", f"{has_joined - joined:.1f} s", ""],
        ["three nodes again, a minute later", f"{again:,.0f}", f"{BACK:.0%} of it after {after_join:.1f} s"],
    ]
    write(
        "cluster-faults",
        f"Nodes that are killed and join, {arguments.recipe}",
        [
            ("Decisions a second", ("what", "figure", "back"), speeds),
            ("Matches", ("what", "number"), matches),
            ("Faults", ("class", "number"), [[name, str(count)] for name, count in faults.items()]),
        ],
        facts={"cores that the nodes share": str(len(os.sched_getaffinity(0)))},
        notes=[
            "All nodes are on one machine and share its cores: a node less may cost no throughput at all. "
            "What is measured is how long the run takes to go on.",
        ],
        keep=seconds >= QUOTED_SECONDS,
    )


if __name__ == "__main__":
    main()

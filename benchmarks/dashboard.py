"""What `ludus watch` costs: how soon a large league is shown, and what looking on takes from a training.

Plants a league of 200 players and 100,000 matches, opens its page in Chromium, and lets 20 viewers follow it
while results come in. Then trains connect_four with one viewer and with 20, who do what the page does: listen
to the events, and ask again for what has changed.

python benchmarks/dashboard.py                                       about three minutes on two cores
python benchmarks/dashboard.py --players 20 --results 2000 --seconds 5      to see that it runs; no report
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from _report import parser, write
from league_size import EPISODES, Planted, make_run

from ludus.data.records import Match, MatchFinished, MatchIssued, MatchLeased, Side
from ludus.league import presets
from ludus.observe.run_state import UseMeter
from ludus.store.run_folder import RunFolder

LUDUS = [sys.executable, "-m", "ludus.cli.main"]
VIEWERS = (1, 20)
RESULTS_PER_S = 5
LOADS = 5


@contextmanager
def watching(run: Path) -> Iterator[tuple[int, int]]:
    """Process and port of `ludus watch`."""
    command = [*LUDUS, "watch", str(run), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        try:
            yield process.pid, int(found[1])
        finally:
            process.terminate()


def ask(port: int, path: str) -> tuple[float, int]:
    """Seconds and bytes."""
    began = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as asking:
        asking.request("GET", path)
        answer = asking.getresponse()
        content = answer.read()
        assert answer.status == 200, content
    return time.perf_counter() - began, len(content)


@dataclass
class Viewer:
    """Looks at a view as the page does: asks for its documents when it hears that they have changed."""

    port: int
    documents: Sequence[str]
    taken: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events = socket.create_connection(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        for name in self.documents:
            self.taken.append(ask(self.port, f"/data/{name}")[0])
        self._events.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with self._events.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    for name in json.loads(line.removeprefix(b"data: ")):
                        if name in self.documents:
                            self.taken.append(ask(self.port, f"/data/{name}")[0])

    def close(self) -> None:
        self._events.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._events.close()


@contextmanager
def viewers(port: int, number: int) -> Iterator[list[float]]:
    """Some look at the overview, some at the league; every second one at each."""
    views = (("overview",), ("overview", "league", "history"))
    looking = [Viewer(port, views[one % 2 if number > 1 else 1]) for one in range(number)]
    taken: list[float] = []
    try:
        yield taken
    finally:
        for one in looking:
            one.close()
            taken.extend(one.taken)


def cores_of(pid: int, seconds: float) -> float:
    meter = UseMeter()
    time.sleep(seconds)
    return meter.look([pid], {})[pid].cores or 0.0


def quantiles(taken: Sequence[float]) -> list[str]:
    return [f"{1000 * float(np.quantile(taken, share)):.0f}" for share in (0.5, 0.99)]


# --- loading ---


def loading(run: Path) -> list[list[str]]:
    began = time.perf_counter()
    with watching(run) as (_, port):
        rows = [["cold: `ludus watch` is started, its address is printed", f"{time.perf_counter() - began:.2f}"]]
        ask(port, "/data/overview")
        rows.append(["cold: the overview is there", f"{time.perf_counter() - began:.2f}"])
        _, size = ask(port, "/data/league")
        rows.append([f"cold: the league is there ({size / 1e6:.2f} MB)", f"{time.perf_counter() - began:.2f}"])
        for name in ("history", "top", "matches", "player/main", "matches?player=main.7&purpose=evaluation"):
            taken, size = ask(port, f"/data/{name}")
            rows.append([f"first asked for: {name} ({size / 1e6:.2f} MB)", f"{taken:.2f}"])
        return rows + in_browser(port)


def in_browser(port: int) -> list[list[str]]:
    """From the address being opened to the whole view being drawn."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        program = None
    if program is None:
        return [["page in Chromium", "not measured: no Chromium, or no playwright"]]
    shown = {"overview": ".facts dt", "league": "tbody tr:nth-child(20)", "top": ".layers li", "matches": "tbody tr"}
    rows = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for view, drawn in shown.items():
            taken = []
            for _ in range(LOADS):
                context = browser.new_context()
                page = context.new_page()
                began = time.perf_counter()
                page.goto(f"http://127.0.0.1:{port}/#{view}")
                page.locator(drawn).first.wait_for()
                taken.append(time.perf_counter() - began)
                context.close()
            rows.append([f"page in Chromium, {view}, nothing cached: median of {LOADS}", f"{np.median(taken):.2f}"])
        browser.close()
    return rows


# --- looking on ---


def following(run: RunFolder, seconds: float) -> list[list[str]]:
    """A large league into which results come."""
    rows = []
    ended = threading.Event()
    writer = threading.Thread(target=add_results, args=(run, ended), daemon=True)
    writer.start()
    try:
        for number in VIEWERS:
            with watching(run.path) as (pid, port):
                ask(port, "/data/league")
                with viewers(port, number) as taken:
                    time.sleep(3.0)
                    cores = cores_of(pid, seconds)
                rows.append([str(number), f"{cores:.3f}", str(len(taken)), *quantiles(taken)])
    finally:
        ended.set()
        writer.join()
    return rows


def add_results(run: RunFolder, ended: threading.Event) -> None:
    planted, rng = Planted(), np.random.default_rng(1)
    with closing(run.ledger()) as ledger:
        while not ended.wait(1 / RESULTS_PER_S):
            sides = tuple(Side((f"main.{one}",)) for one in rng.choice(20, 2, replace=False) + 1)
            match = Match(ledger.next_match_id(), "evaluation", sides, 1, EPISODES)
            ledger.append([MatchIssued(match), MatchLeased(match.id, "a"), MatchFinished(planted.result(match))])


def training(folder: Path, seconds: float) -> list[list[str]]:
    """Cores of a training and of who looks on, at the same time."""
    command = [*LUDUS, "train", "connect_four", "--run", str(folder), "--set", "budget=1000000000"]
    command += ["--set", "league.roles.main.promotion.every=100000"]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (folder / "status.json").exists():
                time.sleep(0.2)
            time.sleep(5.0)
            for number in VIEWERS:
                with watching(folder) as (pid, port), viewers(port, number) as taken:
                    time.sleep(3.0)
                    meter = UseMeter()
                    time.sleep(seconds)
                    use = meter.look([pid, process.pid], {})
                mine, theirs = use[pid].cores or 0.0, use[process.pid].cores or 0.0
                rows.append([str(number), f"{theirs:.2f}", f"{mine:.3f}", f"{mine / theirs:.2%}", *quantiles(taken)])
        finally:
            process.terminate()
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--players", type=int, default=200)
    options.add_argument("--results", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=15.0)
    options.add_argument("--run", type=Path, help="A league that was planted before, to save the time.")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if chosen.run is None:
            run = make_run(place / "large", presets.pfsp(), chosen.players, chosen.results)
        else:
            run = RunFolder.open(chosen.run)
        loads = loading(run.path)
        followed = following(run, chosen.seconds)
        trained = training(place / "training", chosen.seconds)
    write(
        "dashboard",
        "The dashboard",
        [
            (f"A league of {chosen.players} players and {chosen.results:,} matches is shown", ["what", "s"], loads),
            (
                f"The same with {RESULTS_PER_S} new results a second",
                ["viewers", "cores of `ludus watch`", "documents asked for", "median, ms", "99 %, ms"],
                followed,
            ),
            (
                "Beside a training of connect_four",
                ["viewers", "cores of the training", "cores of `ludus watch`", "added", "median, ms", "99 %, ms"],
                trained,
            ),
        ],
        notes=[
            "Half of the viewers look at the overview, half at the league; a single one at the league. The "
            "viewers themselves, and the browser, are not counted."
        ],
        keep=(chosen.players, chosen.results, chosen.seconds) == (200, 100_000, 15.0),
    )


if __name__ == "__main__":
    main()

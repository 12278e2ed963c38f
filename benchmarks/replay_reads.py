"""Random windows of 64 steps from datasets of beacon and skirmish: how many a second, warm.

python benchmarks/replay_reads.py                    records, converts, reads; about two minutes
python benchmarks/replay_reads.py --episodes 8       to see that it runs; writes no report
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _report import parser, write

from ludus.cli.main import main as ludus
from ludus.replays.dataset import ReplayDataset, Windows

QUOTED_EPISODES = 200
LENGTH, WINDOWS = 64, 256
WINDOW_S, REPEATS = 0.5, 4
GAMES = {"beacon": ("random", "oracle"), "skirmish": ("random", "random")}


def make(game: str, players: tuple[str, ...], episodes: int, folder: Path) -> ReplayDataset:
    """Every decision is kept, so that most windows are as long as they can be."""
    replays, dataset = str(folder / f"{game}-replays"), str(folder / game)
    count = episodes // len(players) if game == "beacon" else episodes
    run("record", game, *players, "-n", str(count), "--out", replays, "--quiet")
    run("convert", replays, "--out", dataset, "--keep-no-ops", "--quiet")
    return ReplayDataset.open(dataset)


def run(*arguments: str) -> None:
    try:
        ludus(arguments)
    except SystemExit as end:
        if end.code:
            raise


def rate(work: Callable[[np.random.Generator], int], threads: int) -> float:
    """The best of several windows of time; `work` returns how much it has done. One thread is measured in its
    own CPU time, which others on the machine do not change much; several by the clock on the wall."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = 0.0
    for repeat in range(REPEATS):
        rates = [0.0] * threads

        def go(number: int, rates: list[float] = rates, repeat: int = repeat) -> None:
            rng = np.random.default_rng(1000 * repeat + number)
            start, done = clock(), 0
            while clock() < start + WINDOW_S:
                done += work(rng)
            rates[number] = done / (clock() - start)

        workers = [threading.Thread(target=go, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, sum(rates))
    return best


def memcpy_rate(windows: Windows, threads: int) -> float:
    """Windows a second if their bytes lay side by side and only had to be copied once."""
    source = np.zeros(64 << 20, np.uint8)
    size = windows.num_bytes

    def copy(rng: np.random.Generator) -> int:
        target = np.empty(size, np.uint8)
        begin = int(rng.integers(0, max(len(source) - size, 1)))
        target[:] = source[begin : begin + size]
        return WINDOWS

    return rate(copy, threads)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--episodes", type=int, default=QUOTED_EPISODES)
    episodes = arguments.parse_args().episodes
    rows, facts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for game, players in GAMES.items():
            dataset = make(game, players, episodes, Path(folder))
            for path in dataset.path.iterdir():
                path.read_bytes()  # into the page cache
            example = dataset.read(np.random.default_rng(0), WINDOWS, LENGTH)
            batch = example.batch()
            trees = (batch.observation, batch.legal, batch.action)
            dense = sum(array.nbytes for tree in trees for array in tree.values())
            size = sum(path.stat().st_size for path in dataset.path.iterdir())
            facts[f"{game} dataset"] = (
                f"{dataset.num_episodes:,} episodes, {dataset.num_decisions:,} decisions, {size >> 20} MiB; "
                f"a window has {example.rows.mean():.1f} rows of at most {LENGTH + 1}"
            )

            def read(rng: np.random.Generator, dataset: ReplayDataset = dataset) -> int:
                dataset.read(rng, WINDOWS, LENGTH)
                return WINDOWS

            def expand(rng: np.random.Generator, dataset: ReplayDataset = dataset) -> int:
                dataset.windows(rng, WINDOWS, LENGTH)
                return WINDOWS

            rows += [
                (
                    game,
                    str(threads),
                    f"{rate(read, threads):,.0f}",
                    f"{memcpy_rate(example, threads):,.0f}",
                    f"{example.num_bytes / WINDOWS / 1024:,.0f} KiB",
                    f"{rate(expand, threads):,.0f}",
                    f"{dense / WINDOWS / 1024:,.0f} KiB",
                )
                for threads in (1, 2)
            ]
    columns = ("dataset", "threads", "read: windows/s", "memcpy limit", "a window, stored",
               "expanded: windows/s", "a window, dense")  # fmt: skip
    write(
        "replay_reads",
        "Random windows of replays",
        [(f"Windows of {LENGTH} decisions, {WINDOWS} to a batch, page cache warm", columns, rows)],
        facts=facts,
        notes=[
            "Read: every column of the rows of each window is copied into one batch as it is stored (masks "
            "as bits, planes as bits or codes, entity lists without padding). The limit is one copy of as "
            "many bytes that lie side by side. Expanded: the same, and then bits, codes and lists made into "
            "the dense arrays that a network reads. One thread: by its CPU time; two: by the clock."
        ],
        keep=episodes == QUOTED_EPISODES,
    )


if __name__ == "__main__":
    main()

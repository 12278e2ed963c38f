"""Whether memory stays flat: trains a recipe in the local runtime and samples every process.

python benchmarks/memory.py                 connect_four, 30 minutes
python benchmarks/memory.py skirmish --minutes 20
python benchmarks/memory.py beacon --set league.roles.main.promotion.every=20000   events of many hours in one
python benchmarks/memory.py --minutes 2     to see that it runs; less than 20 minutes write no report
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _report import parser, write

from ludus.config import encode
from ludus.lookup import find_experiment
from ludus.runtime.coordinator import Training
from ludus.runtime.processes import local_training
from ludus.runtime.start import find_initial_models
from ludus.store.run_folder import RunFolder

EVERY_S = 10.0
FULL_MINUTES, LEAST_MINUTES = 30.0, 20.0
SLACK_MIB, SLACK_SHARE = 4.0, 0.02
"""Growth from one third of the run to the next that still is flat: the larger of the two."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of one process, in MiB: all that is resident, shared slots and libraries included, and its own
    (anonymous) part, where a leak would be. A share of shared pages would change with who else runs."""

    second: float
    rss: float
    own: float


Samples = dict[str, list[Sample]]


def processes() -> dict[str, int]:
    """This process and those it has started, by name; a worker that was started again has another name."""
    found = {"controller": os.getpid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it may have ended since we listed it
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found[_name(entry)] = int(entry.name)
    return found


def _name(process: Path) -> str:
    """Workers are told on their command line, in JSON, what they are."""
    last = (process / "cmdline").read_bytes().split(b"\0")[-2:-1]
    try:
        launch = json.loads(last[0])
        return f"{launch['role']} {launch['index']} ({process.name})"
    except (IndexError, ValueError, KeyError, TypeError):
        return f"process {process.name}"


def sample(second: float, samples: Samples) -> None:
    for name, process in processes().items():
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {key: int(rest.split()[0]) / 1024 for key, rest in (line.split(":") for line in lines)}
            samples[name].append(Sample(second, sizes["Rss"], sizes["Anonymous"]))


def verdict(name: str, taken: list[Sample], end: float) -> list[str]:
    """A row of the report: the middle third of the run beside the last. A learner takes twice as much within
    an update as between two, so that a leak is what raises the low marks and the high ones alike."""
    thirds = [[one for one in taken if end * start <= one.second < end * (start + 1 / 3)] for start in (1 / 3, 2 / 3)]
    if min(map(len, thirds)) < 10:
        return [name, "-", "-", "-", "too few samples"]
    columns, grows = [], False
    for sizes in ("rss", "own"):
        (low, high), (later_low, later_high) = (
            np.percentile([getattr(one, sizes) for one in third], (10, 90)) for third in thirds
        )
        rises = [
            later > mark + max(SLACK_MIB, SLACK_SHARE * mark) for mark, later in ((low, later_low), (high, later_high))
        ]
        grows |= all(rises)
        columns.append(f"{low:.0f} to {high:.0f}, then {later_low:.0f} to {later_high:.0f} MiB")
    return [name, str(sum(map(len, thirds))), *columns, "**GROWS**" if grows else "flat"]


def train(recipe: str, settings: Sequence[str], minutes: float) -> tuple[Samples, float, dict[str, float]]:
    """The samples, how long it trained, and how far it came."""
    experiment = replace(find_experiment(recipe, settings), budget=10**12, runtime="local")
    samples: Samples = defaultdict(list)
    start = time.monotonic()
    due = start

    def watch(_: Training) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            sample(now - start, samples)
            due = now + EVERY_S
        if now - start >= minutes * 60:
            os.kill(os.getpid(), signal.SIGTERM)  # asks for an end in good order

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        experiment = find_initial_models(experiment, None).put_into(RunFolder.models_in(folder))
        run = RunFolder.create(folder, encode(experiment), seed=0)
        training = local_training(experiment, run, num_actors=1)
        try:
            training.run(watch)
            return samples, time.monotonic() - start, training.numbers()
        finally:
            training.close()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("recipe", nargs="?", default="connect_four")
    arguments.add_argument("--set", action="append", default=[], dest="settings", metavar="PATH=VALUE")
    arguments.add_argument("--minutes", type=float, default=FULL_MINUTES)
    chosen = arguments.parse_args()
    samples, seconds, numbers = train(chosen.recipe, chosen.settings, chosen.minutes)
    rows = [verdict(name, taken, seconds) for name, taken in samples.items()]
    facts = {
        "trained": f"{seconds / 60:.1f} minutes, {numbers['decisions']:,} decisions, "
        f"{numbers['matches']:,} matches, {numbers.get('restarts', 0):.0f} restarts",
        "recipe": " ".join([f"{chosen.recipe}, local runtime, 1 actor, no end;", *chosen.settings]),
    }
    note = (
        f"A sample every {EVERY_S:.0f} s: the 10th and 90th percentile in the second third of the run, then "
        "in the last. The first does not count: allocators settle, caches of code and models fill. Flat: the "
        f"low and the high mark do not both rise by more than {SLACK_MIB:.0f} MiB and {SLACK_SHARE:.0%}."
    )
    columns = ("process", "samples", "RSS", "own", "verdict")
    write(
        "memory" if chosen.recipe == "connect_four" else f"memory_{chosen.recipe}",
        f"Memory of a long run: {chosen.recipe}",
        [("Processes", columns, rows)],
        facts=facts,
        notes=[note],
        keep=chosen.minutes >= LEAST_MINUTES,
    )


if __name__ == "__main__":
    main()

"""`ludus doctor`: resources of this machine, installed packages, and advice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import resource
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import click
from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape

from ludus.cli.options import json_option
from ludus.config import ConfigError
from ludus.league.league import League
from ludus.league.summary import best_snapshot
from ludus.lookup import open_run
from ludus.observe.league_fold import read_league
from ludus.observe.run_state import gpus
from ludus.observe.terminal import new_console, new_table
from ludus.store.inspection import LedgerReading, Part, inspect_run, read_ledger, repair_ledger
from ludus.store.model_pool import BEST, ModelPoolError, UnknownModel
from ludus.store.run_folder import RunFolder, RunFolderError
from ludus.system.machine import FEW_FILES, control_group, install_command, installed_version, memory_info, usable_cores

Level = Literal["fine", "could", "must"]  # fine as it is; could be better; training will not work like this

GIB = 2**30
LITTLE_MEMORY = 2 * GIB
LITTLE_SHARED_MEMORY = GIB // 2
LITTLE_DISK = 2 * GIB
NO_LIMIT = 2**60  # control groups of version 1 write a number like this where there is no limit
NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "beegfs")
NETWORK_DISK = (
    "is it shared over a network? SQLite, which keeps the ledger, wants a local disk, or one whose locks work"
)


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    here: str  # in a few words
    advice: str = ""  # the advice, with its reason; empty if everything is fine
    level: Level = "fine"


def _finding(what: str, here: str, advice: str = "", level: Level = "could") -> Finding:
    return Finding(what, here, advice, level if advice else "fine")


def look_around() -> Iterator[Finding]:
    """Facts of this machine that matter to training."""
    yield _cores()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "1") != "1":
            advice = f"unset {name}: workers are processes with a thread each, more threads get in their way"
            yield _finding(name, os.environ[name], advice)
    yield from _memory()
    yield from _shared_memory()
    yield _disk(Path.cwd())
    yield _open_files()
    yield _gpu()


def _cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    here = f"{usable:g} usable"
    if usable < there:
        bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else math.inf
        here += f" of {there}, by {'affinity (taskset, Slurm)' if bound <= usable else 'quota (of the container)'}"
    if usable >= 2:
        return _finding("cores", f"{here}: one for the learner, the rest for actors")
    more = "ask for more of them" if usable < there else "a machine with two or more"
    return _finding("cores", here, f"{more}: acting and learning then overlap; with one, --runtime serial is as fast")


def _memory() -> Iterator[Finding]:
    info = memory_info()
    if not info.keys() >= {"MemAvailable", "MemTotal"}:
        return
    free, there = float(info["MemAvailable"]), float(info["MemTotal"])
    limit = control_group("memory.max", "memory/memory.limit_in_bytes")
    used = control_group("memory.current", "memory/memory.usage_in_bytes")
    limited = ""
    if limit < min(there, NO_LIMIT):
        limited = f", container limited to {limit / GIB:.1f} GiB"
        free = min(free, max(0, limit - (used if used < math.inf else 0)))
    here = f"{free / GIB:.1f} of {min(there, limit) / GIB:.1f} GiB free{limited}"
    advice = "each worker takes 0.3 to 0.5 GiB: close something, or use --actors 1" if free < LITTLE_MEMORY else ""
    yield _finding("memory", here, advice)


def _shared_memory() -> Iterator[Finding]:
    shared = Path("/dev/shm")
    if not shared.is_dir():  # another system, where shared memory is not a folder
        return
    usage = shutil.disk_usage(shared)
    advice = ""
    level: Level = "could"
    if not os.access(shared, os.W_OK):
        level = "must"
        advice = "/dev/shm cannot be written: workers share their arrays there; --runtime serial does without"
    elif usage.free < LITTLE_SHARED_MEMORY:
        advice = (
            "workers share their arrays in /dev/shm: start the container with --shm-size=2g (Kubernetes: an "
            "emptyDir of medium Memory there), or use --runtime serial"
        )
    yield _finding("shared memory", f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free", advice, level)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    here = f"{free / GIB:.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        advice = "this folder cannot be written: go elsewhere, or name a run folder with --run"
        return _finding("disk", here, advice, "must")
    if free < LITTLE_DISK:
        advice = "runs are written here, with a file for each snapshot: make room, or name another disk with --run"
        return _finding("disk", here, advice)
    kind = _kind_of_disk(folder)
    if kind in NETWORK_DISKS:
        return _finding("disk", f"{here} ({kind})", f"{kind}: {NETWORK_DISK}")
    return _finding("disk", here)


def _kind_of_disk(folder: Path) -> str:
    """The type of the file system; empty if it is unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = [mount for mount in mounts if folder.is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2] if above else ""


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _finding("open files", "no limit")
    may = "" if hard in (soft, resource.RLIM_INFINITY) else f" (you may raise it to {hard:,})"
    raised = FEW_FILES if hard == resource.RLIM_INFINITY else min(FEW_FILES, hard)
    advice = f"ulimit -n {raised} in this shell: every worker holds some dozen files and pipes open"
    return _finding("open files", f"{soft:,}{may}", advice if soft < FEW_FILES else "")


def _gpu() -> Finding:
    found = gpus()
    if not found and not Path("/proc/driver/nvidia/version").exists():
        return _finding("GPU", "none; small networks do not need one")
    here = ", ".join(f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in found)
    here = here or "NVIDIA driver, but nvidia-smi shows nothing"
    if cuda_of_torch():
        return _finding("GPU", f"{here}: the learner takes it by itself")
    advice = "this build of torch cannot use it: install one for CUDA, see https://pytorch.org/get-started"
    return _finding("GPU", here, advice)


def cuda_of_torch() -> str:
    """The CUDA version that torch was built for, read without importing it; empty if none."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return ""
    try:
        text = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return ""
    match = re.search(r"^cuda\b.*= '([\d.]+)'", text, re.MULTILINE)
    return match.group(1) if match else ""


EXTRAS = {
    "train": ("torch", "training, and playing with learned players"),
    "games": ("gymnasium", "games of the Gymnasium interface"),
    "pettingzoo": ("pettingzoo", "games of PettingZoo"),
    "openspiel": ("open_spiel", "games of OpenSpiel"),
    "pgx": ("pgx", "games of Pgx, in JAX"),
    "atari": ("ale-py", "Atari games for one player"),
    "multi-atari": ("multi-agent-ale-py", "Atari games for two to four players"),
    "slimevolley": ("slimevolleygym", "SlimeVolley"),
    "vizdoom": ("vizdoom", "Doom duels"),
    "fightingice": ("pyftg", "FightingICE"),
    "sc2": ("pysc2", "StarCraft II; best in an environment of its own, make test-sc2"),
    "render": ("pillow", "pictures of play in files"),
    "web": ("starlette", "pages in a browser"),
    "server": ("grpcio", "game servers for actors elsewhere"),
    "export": ("onnx", "agents as ONNX files"),
    "optuna": ("optuna", "studies whose settings an optimiser chooses"),
    "redis": ("redis", "models kept in Redis"),
    "ray": ("ray", "several machines"),
    "tensorboard": ("tensorboardX", "metrics for TensorBoard"),
    "prometheus": ("prometheus_client", "metrics for Prometheus"),
    "wandb": ("wandb", "metrics for Weights & Biases"),
    "report": ("matplotlib", "pictures and tables of a run in files"),
    "bench": ("matplotlib", "curves of the benchmarks"),
    "docs": ("mkdocs-material", "building the site of these docs"),
    "browser": ("playwright", "the tests of pages, with chromium"),
    "dev": ("pytest", "working on Ludus itself"),
}
"""Extra -> the package that shows that it is installed, and what it is for."""

PROGRAMS = {
    "Xvfb": ("xvfb", "games that insist on a screen"),
    "java": ("default-jre-headless", "MicroRTS and FightingICE"),
    "chromium": ("chromium", "the tests of pages; to look at them, any browser will do"),
}
"""Program -> Debian package, and what it is for."""


@click.command("doctor")
@click.argument("run", required=False, type=click.Path())
@click.option("--repair", is_flag=True, help="Keep the rows of RUN's ledger before the damage; the old file is kept.")
@json_option()
def doctor_command(run: str | None, repair: bool, as_json: bool) -> int:
    """Show the resources of this machine, what is installed, and what to change. With RUN: show what is whole of a
    run folder; the exit code is 1 if something is not."""
    if run is not None:
        return _examine(open_run(run), repair=repair, as_json=as_json)
    if repair:
        raise ConfigError("--repair needs RUN, the run folder to repair")
    _show_machine(as_json)
    return 0


def _examine(folder: RunFolder, *, repair: bool, as_json: bool) -> int:
    """Show the parts of a run, and repair its ledger."""
    (reading, league), done = _read(folder), ""
    if repair and (reading.damage is not None or reading.unchained):
        with folder.lock():
            reading, _ = _read(folder)
            done = _repair(folder, reading)
            reading, league = _read(folder)
    parts = [*inspect_run(folder, reading), *_wrong_tags(folder, None if reading.damage else league)]
    whole = all(part.whole for part in parts)
    if as_json:
        click.echo(json.dumps({"run": str(folder.path), "whole": whole, "repaired": done, "parts": to_builtins(parts)}))
        return 0 if whole else 1
    console, table = new_console(), new_table("part", "state", "here")
    for part in parts:
        table.add_row(part.what, "whole" if part.whole else "[bold]damaged[/]", escape(part.here))
    console.print(table)
    for line in (done, _advice(folder, reading, parts)):
        if line:
            console.print(line, markup=False, soft_wrap=True)
    return 0 if whole else 1


def _read(folder: RunFolder) -> tuple[LedgerReading, League | None]:
    """The ledger, whose events are checked by the run's league, unless that is code of its own."""
    try:
        league = read_league(folder)[0]
    except (RunFolderError, KeyError):
        return read_ledger(folder, lambda event: None), None
    return read_ledger(folder, league.apply), league


def _wrong_tags(folder: RunFolder, league: League | None) -> Iterator[Part]:
    """Tags that name another snapshot than the ledger does. A run that goes on moves them now."""
    if league is None or folder.holder() is not None:
        return
    for player in league.standings:
        best = best_snapshot(league, player)
        try:
            tagged = str(folder.models.resolve(f"{player}@{BEST}"))
        except UnknownModel as error:
            if best is None:
                continue
            tagged = str(error)
        except ModelPoolError as error:
            tagged = str(error)
        if best is None:
            here = f"it says {tagged}; the ledger has no evaluation of a snapshot of {player} yet"
            yield Part(what=f"tag {player}@{BEST}", whole=False, here=here)
        elif tagged != league.players[best].model:
            here = f"it says {tagged}; the evaluations say {league.players[best].model} ({best}), which is played"
            yield Part(what=f"tag {player}@{BEST}", whole=False, here=here)


def _repair(folder: RunFolder, reading: LedgerReading) -> str:
    if not reading.rows:
        raise RunFolderError(f"{folder.ledger_path}: {reading.damage}. {_advice(folder, reading, [])}")
    kept = repair_ledger(folder, reading)
    if reading.damage is None:
        return f"written anew with checksums; the old file is {kept}"
    lost = "an unknown number of" if reading.results is None else f"{reading.results:,}"
    dropped = f"{reading.written - reading.rows:,} are dropped, with {lost} results"
    return f"repaired: {reading.rows:,} rows are kept, {dropped}; the damaged file is {kept}"


def _advice(folder: RunFolder, reading: LedgerReading, parts: Sequence[Part]) -> str:
    go_on = f"ludus train --run {folder.path} --resume --accept-loss"
    if reading.damage is not None and not reading.rows:
        remove = f"remove {folder.ledger_path.name} and " if folder.ledger_path.exists() else ""
        return f"no row can be kept: restore it from a copy, or {remove}begin a new league with these weights: {go_on}"
    if reading.damage is not None or reading.unchained:
        return f"keep the rows that are whole: ludus doctor {folder.path} --repair"
    if not all(part.whole for part in parts if part.what == "ledger and checkpoint"):
        return f"go on with what is left: {go_on}"
    return ""


def _show_machine(as_json: bool) -> None:
    machine, packages, programs = list(look_around()), list(_packages()), list(_programs())
    if as_json:
        facts = {
            "ludus": installed_version(),
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": [asdict(one) for one in machine],
            "extras": [asdict(one) for one in packages],
            "programs": [asdict(one) for one in programs],
        }
        click.echo(json.dumps(facts))
        return
    console = new_console()
    versions = f"ludus {installed_version()}, Python {platform.python_version()}"
    console.print(f"{versions}, {platform.system()} on {platform.machine()}")
    missing = [one for one in (*packages, *programs) if one.advice]
    _show(console, "This machine", machine)
    _show(console, "Installed", [one for one in (*packages, *programs) if not one.advice])
    optional = [replace(one, here=f"{one.here}: {one.advice}") for one in missing if one.level != "must"]
    _show(console, "Not installed, and only needed for what it says", optional)
    wanted = [one for one in (*machine, *packages) if one.level != "fine"]
    console.print(
        "\n[bold]What to change[/]" if wanted else "\n[bold]Nothing to change.[/] Train a league: ludus train"
    )
    for one in sorted(wanted, key=lambda one: one.level != "must"):
        needed = "" if one.level == "could" else " (training needs it)"
        console.print(f"- [bold]{one.what}[/]{needed}: {escape(one.advice)}")


def _show(console: Console, title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print(f"\n[bold]{title}[/]")
    table = new_table("what", "here")
    table.show_header = False
    for one in findings:
        table.add_row(one.what, escape(one.here))
    console.print(table)


def _packages() -> Iterator[Finding]:
    for extra, (package, purpose) in EXTRAS.items():
        try:
            yield Finding(extra, f"{package} {importlib.metadata.version(package)}: {purpose}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding(extra, purpose, install_command(extra), "must" if extra == "train" else "fine")


def _programs() -> Iterator[Finding]:
    for program, (package, purpose) in PROGRAMS.items():
        found = shutil.which(program)
        missing = Finding(program, purpose, f"apt install {package}")
        yield missing if found is None else Finding(program, f"{found}: {purpose}")

"""`ludus doctor`: what this machine has, what is installed, and what to change."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click
from rich.console import Console
from rich.markup import escape

from ludus.cli.console import new_console, new_table
from ludus.cli.machine import Finding, Level, look_around

EXTRAS = {
    "train": ("torch", "training, and playing with learned players"),
    "games": ("gymnasium", "games of the Gymnasium interface"),
    "pettingzoo": ("pettingzoo", "games of PettingZoo"),
    "openspiel": ("open_spiel", "games of OpenSpiel"),
    "atari": ("ale-py", "Atari games for one player"),
    "multi-atari": ("multi-agent-ale-py", "Atari games for two to four players"),
    "slimevolley": ("slimevolleygym", "SlimeVolley"),
    "vizdoom": ("vizdoom", "Doom duels"),
    "fightingice": ("pyftg", "FightingICE"),
    "sc2": ("pysc2", "StarCraft II; best in an environment of its own, make test-sc2"),
    "render": ("pillow", "pictures of play in files"),
    "web": ("starlette", "pages in a browser"),
    "server": ("grpcio", "game servers for actors elsewhere"),
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Explain the machine as training sees it, what is installed, and what to change."""
    machine, packages, programs = list(look_around()), list(_packages()), list(_programs())
    if as_json:
        click.echo(json.dumps(_facts(machine, packages, programs)))
        return
    console = new_console()
    versions = f"ludus {importlib.metadata.version('ludus')}, Python {platform.python_version()}"
    console.print(f"{versions}, {platform.system()} on {platform.machine()}")
    _show(console, "This machine", machine)
    _show(console, "Installed", [one for one in (*packages, *programs) if not one.advice])
    _show(
        console,
        "Not installed, and only needed for what it says",
        [
            replace(one, here=f"{one.here}: {one.advice}")
            for one in (*packages, *programs)
            if one.advice and one.level != "must"
        ],
    )
    _show_changes(console, [*machine, *packages])


def _facts(
    machine: Sequence[Finding], packages: Sequence[Finding], programs: Sequence[Finding]
) -> dict[str, object]:
    return {
        "ludus": importlib.metadata.version("ludus"),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": [asdict(one) for one in machine],
        "extras": [asdict(one) for one in packages],
        "programs": [asdict(one) for one in programs],
    }


def _show(console: Console, title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print(f"\n[bold]{title}[/]")
    table = new_table("what", "here")
    table.show_header = False
    for one in findings:
        table.add_row(one.what, escape(one.here))
    console.print(table)


def _show_changes(console: Console, findings: Sequence[Finding]) -> None:
    wanted = [one for one in findings if one.level != "fine"]
    if not wanted:
        console.print("\n[bold]Nothing to change.[/] Train a league: ludus train")
        return
    console.print("\n[bold]What to change[/]")
    for one in sorted(wanted, key=lambda one: one.level != "must"):
        needed = "" if one.level == "could" else " (training needs it)"
        console.print(f"- [bold]{one.what}[/]{needed}: {escape(one.advice)}")


def _packages() -> Iterator[Finding]:
    for extra, (package, purpose) in EXTRAS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            install = f"pip install {shlex.quote(f'ludus[{extra}]')}"
            needed: Level = "must" if extra == "train" else "fine"
            yield Finding(what=extra, here=purpose, level=needed, advice=install)
        else:
            yield Finding(what=extra, here=f"{package} {version}: {purpose}")


def _programs() -> Iterator[Finding]:
    for program, (package, purpose) in PROGRAMS.items():
        found = shutil.which(program)
        if found is None:
            yield Finding(what=program, here=purpose, advice=f"apt install {package}")
        else:
            yield Finding(what=program, here=f"{found}: {purpose}")

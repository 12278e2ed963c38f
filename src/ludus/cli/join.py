"""`ludus join`: this machine becomes a node of a cluster, until it leaves or the cluster ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import click

from ludus.cli.main import FAILED, INTERRUPTED
from ludus.config import ConfigError
from ludus.launch.ray_node import NodeStartError, join_command, start_node, wait_for_head
from ludus.launch.training_command import places
from ludus.runtime.cores import usable_cores
from ludus.runtime.token_file import TOKEN_VARIABLE, TokenError, read_token_file, token_from, with_token

DEFAULT_PORT = 6379


@click.command("join")
@click.argument("head", metavar="HOST[:PORT]")
@click.option("--role", type=click.Choice(["actor", "learner"]), default="actor", show_default=True)
@click.option("--workers", type=click.IntRange(min=0), help="Places for actors; default: one a core.")
@click.option("--token-file", type=click.Path(), help="The cluster's; -: the first line of the input, at "
              "whose end the node leaves. Default: LUDUS_TOKEN, or what Ray has.")  # fmt: skip
@click.option("--address", help="Of this machine, if not the one that leads to HOST.")
@click.option("--wait", "patience_s", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds that HOST may take to be there.")  # fmt: skip
def command(
    head: str, role: str, workers: int | None, token_file: str | None, address: str | None, patience_s: float
) -> int:
    """Offer this machine to the cluster whose head is HOST: places for actors, or for the learner too.

    \b
    ludus join 10.0.0.1 --workers 16 --token-file token
    ludus join 10.0.0.1:6379 --role learner --workers 4
    """
    head = _with_port(head)
    token = _token(token_file)
    if workers is None:
        workers = max(1, int(usable_cores()) - (role == "learner"))
    offered = places(workers, learner=role == "learner")
    if not offered:
        raise ConfigError("--workers 0 is for --role learner: an actor's node without actors does nothing")
    programs = Path(sys.executable).parent
    if not (programs / "ray").exists():
        raise ConfigError("Ray is not installed here; pip install 'ludus[ray]' adds it")
    leaving = threading.Event()
    received: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        leaving.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    if token_file == "-":
        threading.Thread(target=_leave_at_end_of_input, args=(leaving,), daemon=True).start()
    try:
        wait_for_head(head, patience_s, leaving.is_set)
        command_line = join_command(str(programs), head, offered, address)
        node = start_node(command_line, with_token(os.environ, token), leaving.is_set)
    except NodeStartError as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    try:
        if not leaving.is_set():
            click.echo(f"part of the cluster at {head}, with {_describe(offered)}; Ctrl-C leaves")
        sys.stdout.flush()
        while not leaving.is_set() and not node.is_over:
            leaving.wait(0.5)
        if node.is_over:
            click.echo(f"the cluster at {head} has ended")
    finally:
        node.end()
    return INTERRUPTED if signal.SIGINT in received else 0


def _with_port(head: str) -> str:
    host, colon, port = head.rpartition(":")
    if not colon:
        return f"{head}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{head!r} is not HOST or HOST:PORT, such as 10.0.0.1:{DEFAULT_PORT}")
    return head


def _token(file: str | None) -> str:
    try:
        if file == "-":
            token = sys.stdin.readline().strip()
        else:
            token = read_token_file(file) if file is not None else token_from(os.environ) or _ray_default()
    except TokenError as error:
        raise ConfigError(str(error)) from error
    if not token:
        raise ConfigError(
            f"no token: a cluster lets in only who knows it. Give --token-file, or set {TOKEN_VARIABLE}"
        )
    return token


def _ray_default() -> str:
    file = Path.home() / ".ray" / "auth_token"
    return read_token_file(file) if file.exists() else ""


def _describe(offered: dict[str, int]) -> str:
    counts = [
        f"{count} place{'s' * (count > 1)} for {name.partition('_')[2]}s" for name, count in offered.items()
    ]
    return " and ".join(counts)


def _leave_at_end_of_input(leaving: threading.Event) -> None:
    while sys.stdin.read(4096):
        pass
    leaving.set()

"""The `ludus` command. Each subcommand is a file of its own and is imported only when it is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType
from typing import Any

import click

from ludus.data.checks import did_you_mean
from ludus.system.machine import install_command, installed_version
from ludus.system.text import PrintableStream

COMMANDS = {
    "train": "train a league, or resume a run",
    "league": "show ratings, payoff and equilibrium; add, remove, freeze or reset players",
    "set": "change settings of a run while it trains",
    "status": "show the workers of a run, their speed and the bottleneck",
    "watch": "open the dashboard of a run in a browser",
    "report": "write a run as one HTML file, or as tables and figures",
    "logs": "show the output of a run's workers",
    "pause": "pause a run",
    "continue": "continue a paused run",
    "stop": "save and stop a run",
    "scale": "change the number of actors while a run trains",
    "eval": "play matches between players, snapshots and bots",
    "play": "play against a player of a run, in a browser or the terminal",
    "tournament": "let players of any runs, and bots, play against each other",
    "compare": "compare the players of two runs",
    "study": "train several settings and seeds side by side, and compare them",
    "exploit": "measure exploitability, exactly or with a trained best response",
    "export": "write a player as ONNX, as difficulty levels, or as a page that plays by itself",
    "record": "play bots or players and write replays",
    "convert": "convert replays to a dataset",
    "clone": "train a player on a dataset of replays",
    "models": "list models; import weights from elsewhere",
    "games": "list games and what each needs",
    "check": "check that a game meets the interface's contract",
    "serve": "serve a game to remote actors",
    "launch": "train on other machines: Slurm, Kubernetes, or hosts by ssh",
    "join": "join this machine to a cluster",
    "recipes": "list recipes and the settings of one",
    "doctor": "check this machine and the installation, or a run folder",
}
"""Command -> what it does. The function is `ludus.cli.NAME:NAME_command`, or in the file that `FILES` names."""
FILES = {
    "eval": "evaluate",
    **dict.fromkeys(("set", "pause", "continue", "stop", "scale"), "control"),
    "logs": "status",
    "report": "watch",
    **dict.fromkeys(("check", "recipes"), "games"),
    "join": "launch",
}
"""Command -> its file, where several commands share one."""

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
OUT_OF_TIME = 75
"""The time limit of a run was reached: it is saved, and goes on with --resume (EX_TEMPFAIL of sysexits)."""


class EndSignals:
    """The signals that end a command which runs until then. The first one lets it end in good order."""

    def __init__(self, *numbers: int) -> None:
        """Listen to these signals; without any, to SIGINT and SIGTERM."""
        self.ended = threading.Event()
        self._first: int | None = None
        for number in numbers or (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def wait(self) -> None:
        while not self.ended.wait(1.0):
            pass

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self._first == signal.SIGINT else 0

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._first = number if self._first is None else self._first
        self.ended.set()


LOADING_TOLD_AFTER_S = 0.3


@contextmanager
def _told_if_slow(text: str) -> Iterator[None]:
    """Tell a person at a terminal what is going on, if it takes long: loading PyTorch can take seconds."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(LOADING_TOLD_AFTER_S, click.echo, [text], {"err": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


class LazyCommands(click.Group):
    """Imports a command's file on demand, so that `ludus games` never loads torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            ctx.fail(f"unknown command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS, 'see --help')}")
        with _told_if_slow(f"ludus {cmd_name} is loading ..."):
            module = importlib.import_module(f"ludus.cli.{FILES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(installed_version())
def ludus() -> None:
    """Trains leagues of agents for competitive games."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad usage, 75 time limit reached and 130 interrupted (state saved).

    With LUDUS_TRACEBACK=1 in the environment, an error comes with where it was raised.
    """
    _open_closed_streams()
    streams: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(PrintableStream, streams)
    try:
        code = copy_context().run(_run, arguments)  # options such as --trust hold for one command
    finally:
        sys.stdout, sys.stderr = streams
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give what was started without standard streams (`>&-`) the null device, before a file gets their number."""
    for number, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free. Programs that are started inherit standard streams.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - for as long as the program runs
            setattr(sys, ("stdin", "stdout", "stderr")[number], stream)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with _sigterm_as_sigint():
            code = ludus.main(args=arguments, prog_name="ludus", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help'.\n", err=True)
        click.echo(f"error: {error.format_message()}", err=True)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        code = _failed(error)
        if code is None:
            raise
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int | None:
    """Tell what a person can do something about; the exit code, or None for any other error."""
    # Imported late: without numpy the program says within a second that it is loading, on a busy machine too.
    from ludus.config import ConfigError
    from ludus.data.replay import DatasetError
    from ludus.games.seat_rows import GameError
    from ludus.services.endpoints import ServiceError
    from ludus.store.files import StoreError
    from ludus.workers.worker import TrainingFailed

    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        click.echo(f"error: this command needs PyTorch: {install_command('train')}", err=True)
        return FAILED
    told = (ConfigError, DatasetError, GameError, ServiceError, StoreError, TrainingFailed, OSError)
    if os.environ.get("LUDUS_TRACEBACK") or not isinstance(error, told):
        return None
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    click.echo(f"error: {text}", err=True)
    return BAD_USAGE if isinstance(error, ConfigError) else FAILED


@contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: it cleans up and exits with 130. A command that has to save something
    listens to both itself, as soon as there is something to save."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()

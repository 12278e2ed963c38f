"""`ludus watch`: the dashboard of a run in a browser."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

import click

from ludus.cli.experiments import open_run
from ludus.cli.main import INTERRUPTED
from ludus.cli.page_options import page_options, read_access, show_in_browser


@click.command("watch")
@click.argument("run", required=False, type=click.Path())
@page_options
def command(
    run: str | None,
    host: str,
    port: int,
    token_file: str | None,
    names: tuple[str, ...],
    open_browser: bool | None,
) -> int:
    """Show RUN (default: the newest under runs/) in a browser: how it goes, its league, players and matches.

    Reads only, while the run trains or long after, also from a copy or a read-only disk. On another machine:
    `ssh -L 8000:localhost:8000 MACHINE`, there `ludus watch RUN --port 8000`, here http://localhost:8000.
    """
    access = read_access(host, token_file, names)
    from ludus.cli.replay_view import replay_reader
    from ludus.observe.web.dashboard import Dashboard
    from ludus.observe.web.page_server import PageServer
    from ludus.run_view.view import RunView, ViewError

    folder = open_run(run)
    ended = threading.Event()
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    view = RunView(folder)
    dashboard = Dashboard(view, ViewError, replay_reader(folder))
    try:
        server = PageServer(dashboard.app, access, port=port)
        try:
            server.start()
            click.echo(f"{folder.path} at {server.url} (Ctrl-C ends)")
            if access.token is not None:
                click.echo("  it asks for the token; what it shows travels in the clear, `ssh -L` hides it")
            sys.stdout.flush()
            show_in_browser(server.url, open_browser)
            while not ended.wait(1.0):
                pass
        finally:
            dashboard.close()
            server.close()
    finally:
        dashboard.close()
        view.close()
    return INTERRUPTED if received[0] == signal.SIGINT else 0

"""`ludus watch` and `ludus report`: the dashboard of a run in a browser, or in one file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ludus.cli.main import EndSignals
from ludus.cli.options import PageOptions, page_options, trust_option
from ludus.config import ConfigError
from ludus.lookup import open_run
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command

if TYPE_CHECKING:
    from ludus.evaluation.game_recorder import GamesOnRequest
    from ludus.evaluation.play.server import PlayPage
    from ludus.observe.view import RunView
    from ludus.observe.web.dashboard import Dashboard
    from ludus.observe.web.page_server import PageAccess


@click.command("watch")
@click.argument("run", required=False, type=click.Path())
@trust_option
@page_options
def watch_command(run: str | None, trust: bool, **page: Any) -> int:
    """Show RUN (default: the newest under runs/) in a browser: its progress, league, players and matches. Of a folder
    that holds runs, such as runs/, or of a study, show the list of its runs, and compare them.

    Reads only, while the run trains or long after, also from a copy or a read-only disk. On another machine:
    `ssh -L 8000:localhost:8000 MACHINE`, there `ludus watch RUN --port 8000`, here http://localhost:8000.
    """
    options = PageOptions(**page)
    access = options.access()
    from ludus.observe.run_list import has_runs

    path = None if run is None else Path(run)
    if path is not None and has_runs(path):
        return _watch_several(path, options, access, trust)
    from ludus.observe.view import RunView

    folder = open_run(run)
    signals = EndSignals()
    with (
        closing(RunView(folder)) as view,
        closing(_dashboard(folder, view, trust)) as dashboard,
        options.serving(dashboard.app, access, f"{folder.path} at URL (Ctrl-C ends)"),
        closing(dashboard),  # before the server, which waits for its requests
    ):
        signals.wait()
    return signals.exit_code


def _watch_several(path: Path, options: PageOptions, access: PageAccess, trust: bool) -> int:
    from ludus.observe.run_list import RunList
    from ludus.observe.web.run_list_pages import RunListPages

    signals = EndSignals()
    with (
        closing(RunListPages(RunList(path), lambda folder, view: _dashboard(folder, view, trust))) as pages,
        options.serving(pages.app, access, f"{path} at URL (Ctrl-C ends)"),
        closing(pages),
    ):
        signals.wait()
    return signals.exit_code


def _dashboard(folder: RunFolder, view: RunView, trust: bool) -> Dashboard:
    from ludus.evaluation.play.replays import replay_reader
    from ludus.observe.web.dashboard import Dashboard

    read_replay = replay_reader(folder, trusted=trust)
    games = _games_of(folder, trust)

    def play_page() -> PlayPage:
        host = games().host()
        from ludus.evaluation.play.server import PlayPage

        return PlayPage(host, host.opponents.usual(), None, read_replay=read_replay)

    return Dashboard(view, read_replay, lambda players: games().play(players), play_page)


def _games_of(folder: RunFolder, trust: bool) -> Callable[[], GamesOnRequest]:
    """Games with players of the run. PyTorch and the run's code are loaded at the first one."""

    @cache
    def games() -> GamesOnRequest:
        try:
            from ludus.evaluation.game_recorder import GamesOnRequest
            from ludus.models.policy import use_threads
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name!r} is not installed; {install_command('train')} adds it") from error

        use_threads(1)
        return GamesOnRequest(folder, trusted=trust)

    return games


@click.command("report")
@click.argument("run", required=False, type=click.Path())
@click.option("--out", type=click.Path(dir_okay=False), help="The file; default: report.html in the run folder.")
@click.option(
    "--export", type=click.Path(file_okay=False), help="Also write tables (CSV) and pictures (PNG, SVG) here."
)
@trust_option
def report_command(run: str | None, out: str | None, export: str | None, trust: bool) -> None:
    """Write RUN (default: the newest under runs/) into one HTML file that opens anywhere, without a network.

    It has the pages of `ludus watch` as they are now, and the experiment, versions, command and seed that the
    run was made with.

    \b
    ludus report runs/connect_four-001
    ludus report runs/connect_four-001 --out for_you.html --export figures
    """
    if export is not None:
        from ludus.observe.export import require_matplotlib

        require_matplotlib()
    from ludus.evaluation.play.replays import replay_reader
    from ludus.observe.report import write_report

    folder = open_run(run)
    path = folder.path / "report.html" if out is None else Path(out)
    try:
        documents = write_report(
            folder, path, replay_reader(folder, trusted=trust), lambda line: click.echo(line, err=True)
        )
    except OSError as error:
        if error.filename != str(path):  # it could not read the run
            raise
        where = "; write it elsewhere with --out FILE.html" if out is None else ""
        raise ConfigError(f"{path}: {error.strerror}{where}") from error
    click.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser, or send it")
    if export is not None:
        from ludus.observe.export import export_run

        written = export_run(documents, Path(export))
        click.echo(f"{export}: {', '.join(written)}")

"""`ludus report`: a run as one HTML file, and as pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ludus.cli.experiments import open_run
from ludus.config import ConfigError
from ludus.store.files import atomic_write
from ludus.store.run_folder import RunFolder

MOST_REPLAYS = 20
"""Recorded games that the file holds: the newest."""


@click.command("report")
@click.argument("run", required=False, type=click.Path())
@click.option(
    "--out", type=click.Path(dir_okay=False), help="The file; default: report.html in the run folder."
)
@click.option(
    "--export",
    type=click.Path(file_okay=False),
    help="Also write tables (CSV) and pictures (PNG, SVG) into this folder.",
)
def command(run: str | None, out: str | None, export: str | None) -> None:
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
    from ludus.observe.report import report_page

    folder = open_run(run)
    documents = read_documents(folder)
    path = folder.path / "report.html" if out is None else Path(out)
    try:
        atomic_write(path, report_page(folder, documents).encode(), sync=False)
    except OSError as error:
        where = "; write it elsewhere with --out FILE.html" if out is None else ""
        raise ConfigError(f"{path}: {error.strerror}{where}") from error
    click.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser, or send it to somebody")
    if export is not None:
        from ludus.observe.export import export_run

        written = export_run(documents, Path(export))
        click.echo(f"{export}: {', '.join(written)}")


def read_documents(folder: RunFolder) -> Mapping[str, Any]:
    """What the pages show, by name, as plain values. What a run does not have is left out, and the page says
    so."""
    import msgspec

    from ludus.cli.replay_view import replay_reader
    from ludus.run_view.view import RunView, ViewError

    view = RunView(folder)
    try:
        view.refresh()
        documents: dict[str, Any] = {}
        for name in view.names():
            try:
                documents[name] = msgspec.to_builtins(view.document(name))
            except ViewError as error:
                click.echo(f"without {name}: {error}", err=True)
        read = replay_reader(folder)
        for replay in view.replays()[:MOST_REPLAYS]:
            try:
                documents[f"replay/{replay}"] = read(replay)
            except (ValueError, OSError) as error:
                click.echo(f"without the replay {replay}: {error}", err=True)
    finally:
        view.close()
    return documents

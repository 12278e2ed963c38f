"""`ludus stop`: ends a run in good order."""

from __future__ import annotations

import time

import click

from ludus.cli.asking import POLL_S, json_option, order_and_tell, wait_option
from ludus.cli.experiments import open_run
from ludus.data.edits import Stop


@click.command("stop")
@click.argument("run", type=click.Path())
@click.option("--now", is_flag=True, help="At once, without saving: back to the latest checkpoint.")
@wait_option
@json_option
def command(run: str, now: bool, patience_s: float, as_json: bool) -> None:
    """End RUN as Ctrl-C does: it saves, open matches are void, and `ludus train --resume` goes on from there.
    Waits until it has ended. With --now as a second Ctrl-C does."""
    folder = open_run(run)
    holder = folder.holder()
    deadline = time.monotonic() + patience_s
    order_and_tell(folder, Stop(now=now), patience_s, as_json=as_json)
    while folder.holder() == holder:
        if time.monotonic() > deadline:
            who = f"process {holder.pid} on {holder.host}" if holder else "it"
            raise click.ClickException(f"{who} is stopping but has not ended yet (--wait S)")
        time.sleep(POLL_S)
    if not as_json:
        click.echo(f"it has ended; go on: ludus train --run {folder.path} --resume")

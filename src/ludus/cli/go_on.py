"""`ludus continue`: lets a run that rests go on."""

from __future__ import annotations

import click

from ludus.cli.asking import json_option, order_and_tell, wait_option
from ludus.cli.experiments import open_run
from ludus.data.edits import Continue


@click.command("continue")
@click.argument("run", type=click.Path())
@wait_option
@json_option
def command(run: str, patience_s: float, as_json: bool) -> None:
    """Let RUN go on after `ludus pause RUN`. A run that has ended goes on with `ludus train --resume`."""
    order_and_tell(open_run(run), Continue(), patience_s, as_json=as_json)

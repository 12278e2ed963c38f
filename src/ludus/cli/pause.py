"""`ludus pause`: lets a run rest."""

from __future__ import annotations

import click

from ludus.cli.asking import json_option, order_and_tell, wait_option
from ludus.cli.experiments import open_run
from ludus.data.edits import Pause


@click.command("pause")
@click.argument("run", type=click.Path())
@wait_option
@json_option
def command(run: str, patience_s: float, as_json: bool) -> None:
    """Let RUN rest: nobody plays or learns until `ludus continue RUN`. Nothing is lost, and open matches stay
    open. All processes stay, and so does their memory.

    A run that ends meanwhile, however that happens, is not paused any more when it goes on.
    """
    order_and_tell(open_run(run), Pause(), patience_s, as_json=as_json)

"""`ludus scale`: more or fewer actors while a run trains."""

from __future__ import annotations

import click
import msgspec

from ludus.cli.asking import ask_and_tell, json_option, wait_option
from ludus.cli.experiments import open_run
from ludus.config import ConfigError
from ludus.config.errors import nearest
from ludus.data.edits import ChangeSettings

KINDS = ("actors",)
"""Workers whose number may change while a run trains."""


@click.command("scale")
@click.argument("run", type=click.Path())
@click.argument("counts", nargs=-1, required=True, metavar="actors=N")
@wait_option
@json_option
def command(run: str, counts: tuple[str, ...], patience_s: float, as_json: bool) -> None:
    """Change how many actors RUN has, whether it trains or not. The run keeps the number.

    Who joins disturbs nobody. Who leaves plays its open matches to their end; those that take longer than
    supervision.leave_within_s are void.

    \b
    ludus scale runs/mine actors=4
    """
    folder = open_run(run)
    if msgspec.json.decode(folder.facts.experiment).get("runtime") == "serial":
        raise ConfigError(f"{folder.path} is of the serial runtime, which is one process")
    settings: dict[str, str] = {}
    for given in counts:
        kind, equals, count = given.partition("=")
        if not equals:
            raise ConfigError(f"say how many of what, as in actors=4; got {given!r}")
        if kind not in KINDS:
            close = nearest(kind, KINDS)
            raise ConfigError(
                f"there is no number of {kind!r} to change; "
                + (f"did you mean {close!r}?" if close else f"what can: {', '.join(KINDS)}")
            )
        if not count.isdecimal() or int(count) < 1:
            raise ConfigError(f"{kind} must be a whole number from 1 on, got {count!r}")
        settings[kind] = count
    ask_and_tell(run, ChangeSettings(settings=settings), patience_s, as_json=as_json)

"""`ludus league RUN add|remove|freeze|reset`: changes who is in a league, while it trains or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ludus.cli.asking import ask_and_tell, json_option, wait_option
from ludus.cli.experiments import parse_settings
from ludus.data.edits import AddPlayer, FreezePlayer, RemovePlayer, ResetPlayer

from_option = click.option(
    "--from",
    "--model",
    "source",
    metavar="WHAT",
    help="Weights to begin with: of a player as it is now, PLAYER@best, or PLAYER:INCARNATION:STEP.",
)


class LeagueCommand(click.Command):
    """`league RUN` shows the league; with one of these words after RUN it changes it."""

    @property
    def after_run(self) -> Mapping[str, click.Command]:
        """The words that may follow RUN."""
        return EDITS

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if len(args) > 1 and args[1] in EDITS:
            run, word, *rest = args
            return EDITS[word].make_context(f"{info_name} {run} {word}", rest, parent, obj=run, **extra)
        if args and args[0] in EDITS and not Path(args[0]).exists():
            start = " ".join(filter(None, (parent.command_path if parent else "", info_name)))
            raise click.UsageError(f"which run? write {start} RUN {' '.join(args)}", parent)
        return super().make_context(info_name, args, parent, **extra)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Changes (ludus league RUN WORD --help)"):
            formatter.write_dl([(word, edit.get_short_help_str()) for word, edit in EDITS.items()])


@click.command("add")
@click.argument("player")
@click.option("--role", required=True, help="A learning role of the league, frozen or scripted.")
@from_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="A setting of its own (learner.* or algorithm.*); may be repeated.",
)
@wait_option
@json_option
@click.pass_obj
def add(
    run: str,
    player: str,
    role: str,
    source: str | None,
    settings: tuple[str, ...],
    patience_s: float,
    as_json: bool,
) -> None:
    """Add PLAYER: one that learns, a frozen one, or a bot of the game.

    \b
    ludus league runs/mine add second --role main --from main --set learner.learning_rate=1e-4
    ludus league runs/mine add champion --role frozen --from main@best
    ludus league runs/mine add random --role scripted
    """
    edit = AddPlayer(player=player, role=role, source=source, settings=dict(parse_settings(settings)))
    ask_and_tell(run, edit, patience_s, as_json=as_json)


@click.command("remove")
@click.argument("player")
@click.option("--reason", default="by hand", show_default=True)
@wait_option
@json_option
@click.pass_obj
def remove(run: str, player: str, reason: str, patience_s: float, as_json: bool) -> None:
    """Take PLAYER out of the league. What it has played still counts, and its id is never used again."""
    ask_and_tell(run, RemovePlayer(player=player, reason=reason), patience_s, as_json=as_json)


@click.command("freeze")
@click.argument("player")
@wait_option
@json_option
@click.pass_obj
def freeze(run: str, player: str, patience_s: float, as_json: bool) -> None:
    """Add a snapshot of learning PLAYER as it is now."""
    ask_and_tell(run, FreezePlayer(player=player), patience_s, as_json=as_json)


@click.command("reset")
@click.argument("player")
@from_option
@wait_option
@json_option
@click.pass_obj
def reset(run: str, player: str, source: str | None, patience_s: float, as_json: bool) -> None:
    """Let learning PLAYER start again, from what its role says or from other weights."""
    ask_and_tell(run, ResetPlayer(player=player, source=source), patience_s, as_json=as_json)


EDITS: dict[str, click.Command] = {"add": add, "remove": remove, "freeze": freeze, "reset": reset}

"""Commands that change a run: `set`, `scale`, `pause`, `continue` and `stop`. A command sends its edit to the process
that trains the run. If no process does, the command edits the ledger itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import msgspec

from ludus.cli.options import SECONDS, code_trust_option, json_option, together
from ludus.config import ConfigError
from ludus.data.checks import did_you_mean
from ludus.data.records import AnyEdit, ChangeSettings, Continue, Order, Pause, Stop
from ludus.lookup import open_run, parse_settings
from ludus.store.run_control import Asked, EditAnswer, RunLocked
from ludus.store.run_folder import RunFolder

POLL_S = 0.05
PATIENCE_S = 60.0
LAST_WORDS_S = 1.0  # seconds to wait for an answer after the process that took the request has ended

request_options = together(
    click.option(
        "--wait", "patience_s", type=SECONDS, default=PATIENCE_S, help="Seconds that the run may take to answer."
    ),
    json_option("Print the result as JSON."),
)


def edit_command(make_edit: Callable[..., AnyEdit]) -> Callable[..., None]:
    """Make a command of a function that returns an edit: it applies the edit and prints the result. The run is an
    argument of the command, or the object of its context."""

    @code_trust_option
    @request_options
    @wraps(make_edit)
    def command(*, patience_s: float, as_json: bool, **given: Any) -> None:
        edit = make_edit(**given)
        folder = open_run(given["run"] if "run" in given else click.get_current_context().obj)
        answer, is_training = ask(folder, edit, patience_s)
        tell(folder, answer, is_training, as_json=as_json)
        if not is_training and not as_json:
            click.echo(f"the run is not training now; resume it with: ludus train --run {folder.path} --resume")

    return command


def order_and_tell(folder: RunFolder, order: Order, patience_s: float, *, as_json: bool) -> None:
    """Send an order to the process that trains the run. Raises an error if there is none."""
    answer = None
    if folder.holder() is not None:
        answer = _ask_trainer(folder, order, time.monotonic() + patience_s)
    if answer is None:
        answer = EditAnswer(refused=f"{folder.path} is not training")
    tell(folder, answer, True, as_json=as_json)


def tell(folder: RunFolder, answer: EditAnswer, is_training: bool, *, as_json: bool) -> None:
    """Print the result. Raises an error if nothing has changed."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(answer) | {"training": is_training}))
        if answer.refused is not None or answer.failed is not None:
            raise click.exceptions.Exit(1)
        return
    if answer.failed is not None:
        raise click.ClickException(
            f"the run failed while it did this ({answer.failed}); `ludus league {folder.path}` shows whether it did"
        )
    if answer.refused is not None:
        raise click.ClickException(f"{answer.refused} (nothing has changed)")
    click.echo(answer.done)


def ask(folder: RunFolder, edit: AnyEdit, patience_s: float = PATIENCE_S) -> tuple[EditAnswer, bool]:
    """Returns the answer, and whether a process that trains the run gave it."""
    deadline = time.monotonic() + patience_s
    while True:
        if folder.holder() is None:
            from ludus.runtime.start import edit_stopped  # with torch, which is slow to load

            try:
                with folder.lock():
                    return edit_stopped(folder, edit), False
            except RunLocked:  # it has just been started
                if time.monotonic() > deadline:
                    raise
        answer = _ask_trainer(folder, edit, deadline)
        if answer is not None:
            return answer, True


def _ask_trainer(folder: RunFolder, edit: AnyEdit | Order, deadline: float) -> EditAnswer | None:
    """Returns None if the run stopped training before any process took the request."""
    asked = Asked(folder.requests, edit)
    gone_since: float | None = None
    try:
        while True:
            answer = asked.answer()
            if answer is not None:
                return answer
            now = time.monotonic()
            if folder.holder() is not None:
                gone_since = None
            elif asked.withdraw():
                return None
            else:
                gone_since = now if gone_since is None else gone_since
                if now - gone_since > LAST_WORDS_S:
                    raise click.ClickException(
                        f"the run ended while it did this; `ludus league {folder.path}` shows whether it did"
                    )
            if now > deadline:
                raise _unanswered(folder, asked)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        asked.withdraw()
        raise


def _unanswered(folder: RunFolder, asked: Asked) -> click.ClickException:
    holder = folder.holder()
    who = f"process {holder.pid} on {holder.host}" if holder else "the process that trained it"
    if asked.withdraw():
        return click.ClickException(
            f"{who} did not answer in time, and the request is withdrawn: nothing has changed (--wait S)"
        )
    return click.ClickException(
        f"{who} has taken the request but is not done with it yet; `ludus league {folder.path}` shows when it is"
    )


@click.command("pause")
@click.argument("run", type=click.Path())
@request_options
def pause_command(run: str, patience_s: float, as_json: bool) -> None:
    """Pause RUN until `ludus continue RUN`. Open matches stay open, and all processes keep their memory.

    A run that ends while it is paused is no longer paused when it resumes.
    """
    order_and_tell(open_run(run), Pause(), patience_s, as_json=as_json)


@click.command("continue")
@click.argument("run", type=click.Path())
@request_options
def continue_command(run: str, patience_s: float, as_json: bool) -> None:
    """Continue RUN after `ludus pause RUN`. Resume a run that has ended with `ludus train --resume`."""
    order_and_tell(open_run(run), Continue(), patience_s, as_json=as_json)


@click.command("stop")
@click.argument("run", type=click.Path())
@click.option("--now", is_flag=True, help="Stop at once without saving; the run resumes from its latest checkpoint.")
@request_options
def stop_command(run: str, now: bool, patience_s: float, as_json: bool) -> None:
    """Save and stop RUN, as Ctrl-C does. Open matches become void, and `ludus train --resume` resumes the run.
    The command waits until the run has ended. --now acts like a second Ctrl-C."""
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
        click.echo(f"the run has ended; resume it with: ludus train --run {folder.path} --resume")


KINDS = ("actors",)  # workers whose number may change while a run trains


@click.command("scale")
@click.argument("run", type=click.Path())
@click.argument("counts", nargs=-1, required=True, metavar="actors=N")
@edit_command
def scale_command(run: str, counts: tuple[str, ...]) -> ChangeSettings:
    """Change how many actors RUN has, whether it trains or not. The run keeps the number.

    Actors that join do not disturb the others. An actor that leaves finishes its open matches; matches that take
    longer than supervision.leave_within_s become void.

    \b
    ludus scale runs/mine actors=4
    """
    folder = open_run(run)
    runtime = msgspec.json.decode(folder.facts.experiment).get("runtime")
    if runtime in ("serial", "device"):
        raise ConfigError(f"{folder.path} is of the {runtime} runtime, which is one process")
    settings: dict[str, str] = {}
    for given in counts:
        kind, equals, count = given.partition("=")
        if not equals:
            raise ConfigError(f"write actors=N, as in actors=4; got {given!r}")
        if kind not in KINDS:
            raise ConfigError(f"there is no number of {kind!r} to change{did_you_mean(kind, KINDS)}")
        if not count.isdecimal() or int(count) < 1:
            raise ConfigError(f"{kind} must be a whole number from 1 on, got {count!r}")
        settings[kind] = count
    return ChangeSettings(settings=settings)


@click.command("set")
@click.argument("run", type=click.Path())
@click.argument("settings", nargs=-1, required=True, metavar="PATH=VALUE...")
@click.option("--player", metavar="NAME", help="Only for this learning player (learner.* and algorithm.*).")
@edit_command
def set_command(run: str, settings: tuple[str, ...], player: str | None) -> ChangeSettings:
    """Change settings of RUN, whether it trains or not. All changes are applied together, or none.

    Only settings marked live can change; `ludus recipes RECIPE` lists them. The ledger keeps the changes, so they
    also hold after a resume.

    \b
    ludus set runs/mine learner.learning_rate=1e-4 algorithm.entropy=0.02
    ludus set runs/mine learner.learning_rate=1e-4 --player main_exploiter
    ludus set runs/mine league.roles.main.matchmaking.branches.0.0=0.2 \\
                        league.roles.main.matchmaking.branches.1.0=0.8
    ludus set runs/a 'league.roles.+b={matchmaking: {type: Live, role: main}}'
    """
    return ChangeSettings(settings=dict(parse_settings(settings)), player=player)

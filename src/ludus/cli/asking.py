"""How a command changes a run: through the process that trains it, or by itself if there is none."""

from __future__ import annotations

import json
import time

import click
import msgspec

from ludus.cli.experiments import open_run
from ludus.data.edits import AnyEdit, Order
from ludus.store.requests import Answer, Asked
from ludus.store.run_folder import RunFolder
from ludus.store.run_lock import RunLocked

POLL_S = 0.05
PATIENCE_S = 60.0
LAST_WORDS_S = 1.0
"""How long an answer may come after the process that took the request has ended."""

wait_option = click.option(
    "--wait",
    "patience_s",
    type=click.FloatRange(min=0.0),
    default=PATIENCE_S,
    show_default=True,
    help="Seconds to wait for the process that trains the run.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Say what happened as JSON.")


def ask_and_tell(run: str, edit: AnyEdit, patience_s: float, *, as_json: bool) -> None:
    """Have an edit done and print what has happened; an error if it was refused."""
    folder = open_run(run)
    answer, is_training = ask(folder, edit, patience_s)
    tell(folder, answer, is_training, as_json=as_json)
    if not is_training and not as_json:
        click.echo(f"nobody trains it now; go on: ludus train --run {folder.path} --resume")


def order_and_tell(folder: RunFolder, order: Order, patience_s: float, *, as_json: bool) -> None:
    """Have the process that trains the run do something; an error if there is none."""
    answer = None
    if folder.holder() is not None:
        answer = _ask_trainer(folder, order, time.monotonic() + patience_s)
    if answer is None:
        answer = Answer(refused=f"nobody trains {folder.path}")
    tell(folder, answer, True, as_json=as_json)


def tell(folder: RunFolder, answer: Answer, is_training: bool, *, as_json: bool) -> None:
    """Print what has happened; an error if nothing has."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(answer) | {"training": is_training}))
        if answer.refused is not None or answer.failed is not None:
            raise click.exceptions.Exit(1)
        return
    if answer.failed is not None:
        raise click.ClickException(
            f"the run failed while it did this ({answer.failed}); "
            f"`ludus league {folder.path}` shows whether it did"
        )
    if answer.refused is not None:
        raise click.ClickException(f"{answer.refused} (nothing has changed)")
    click.echo(answer.done)


def ask(folder: RunFolder, edit: AnyEdit, patience_s: float = PATIENCE_S) -> tuple[Answer, bool]:
    """The answer, and whether it comes from a process that trains the run."""
    deadline = time.monotonic() + patience_s
    while True:
        if folder.holder() is None:
            from ludus.cli.stopped_run import edit_stopped  # with torch, which is slow to load

            try:
                with folder.lock():
                    return edit_stopped(folder, edit), False
            except RunLocked:  # it has just been started
                if time.monotonic() > deadline:
                    raise
        answer = _ask_trainer(folder, edit, deadline)
        if answer is not None:
            return answer, True


def _ask_trainer(folder: RunFolder, edit: AnyEdit | Order, deadline: float) -> Answer | None:
    """None if nobody trains the run any more, and nobody has taken the request."""
    asked = Asked(folder.requests, edit, max(0.0, deadline - time.monotonic()))
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
        f"{who} has taken the request but is not done with it yet; "
        f"`ludus league {folder.path}` shows when it is"
    )

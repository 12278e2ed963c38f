"""`ludus play`: a person against a player of a run, in a browser or in the terminal."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from typing import Any

import click

from ludus.cli.control import ask
from ludus.cli.options import AT_LEAST_0, COUNT, PageOptions, Weights, code_trust_option, page_options, weights_option
from ludus.config import ConfigError
from ludus.data.records import RECORDED
from ludus.evaluation.entrants import is_run_address, split_address
from ludus.evaluation.play.house import PERSON, Kept, Opponents, PlayHost
from ludus.evaluation.play.replays import drawing_of, replay_reader
from ludus.evaluation.play.session import Ended, GameSeats, WrongMove, abandoned, finished, write_replay
from ludus.evaluation.play.terminal import InputEnded, play_in_terminal
from ludus.games.game import GameSource
from ludus.games.recording import innermost
from ludus.league.players import check_player_id
from ludus.lookup import add_bots, open_run
from ludus.models.policy import use_threads
from ludus.replays.replay_games import game_address
from ludus.runtime.assemble import load_state
from ludus.runtime.rounds import stop_signals
from ludus.runtime.services import services_at_hand
from ludus.store.files import StoreError
from ludus.store.run_folder import RunFolder

LOOK_S = 0.2


@click.command("play")
@click.argument("run", required=False, type=click.Path())
@click.argument("player", required=False)
@click.option("--seat", type=AT_LEAST_0, help="The seat that you take; default: any.")
@click.option("--as", "person", default=PERSON, metavar="NAME", help="What you are called in the ledger.")
@click.option("--terminal", is_flag=True, help="Here instead of in a browser; moves may come through a pipe.")
@click.option("--games", type=COUNT, default=1, help="With --terminal: how many, seats in turn unless --seat is given.")
@click.option("--thoughts", is_flag=True, help="With --terminal: show what your opponent would do.")
@weights_option
@click.option("--greedy", is_flag=True, help="Your opponent always takes its most probable action.")
@page_options
@code_trust_option
def play_command(
    run: str | None,
    player: str | None,
    seat: int | None,
    person: str,
    terminal: bool,
    games: int,
    thoughts: bool,
    weights: Weights,
    greedy: bool,
    **page: Any,
) -> None:
    """Play against PLAYER of RUN: a learning player, a snapshot, main@best, a model or a bot, named as in
    `ludus eval`; RUN#PLAYER is the same. Without PLAYER: the best of the first learning player. On the page others
    can be chosen.

    Each game becomes a match of purpose "human" in the run's ledger, apart from training, and a replay in
    RUN/replays. The run may be training meanwhile.

    \b
    ludus play runs/mine
    ludus play runs/mine main.3 --terminal --seat 0
    """
    options = PageOptions(**page)
    access = None if terminal else options.access()
    use_threads(1)
    if run is not None and is_run_address(run):  # RUN#PLAYER in place of RUN PLAYER
        run, named = split_address(run)
        if player is not None:
            raise click.UsageError(f"two opponents are named, {named} and {player}: name one")
        player = named
    folder = open_run(run)
    experiment, league = load_state(folder)
    wanted = [player] if player is not None else []
    experiment, found = add_bots(experiment, wanted, taken=league.players)
    click.get_current_context().with_resource(services_at_hand(experiment, folder))
    opponents = Opponents(experiment, folder, league, weights=weights, greedy=greedy)
    _check_person(person, opponents)
    source = experiment.measured_game
    records = _Records(folder, source)
    house = PlayHost(source, opponents, person=person, keep=records.keep, drawing=None if terminal else drawing_of)
    chosen = found[0] if found else opponents.usual()
    try:
        house.start(chosen, seat).close("tried")
    except WrongMove as error:
        raise click.BadParameter(str(error), param_hint="'--seat'") from error
    if access is None:
        _in_terminal(house, chosen, seat, games, thoughts)
        records.require_kept()
        return
    from ludus.evaluation.play.server import PlayPage

    if not _is_writable(folder):
        click.echo(f"{folder.path} is read-only: games are not recorded", err=True)
    with (
        stop_signals() as stopped,  # the first one lets games that have ended be recorded
        closing(PlayPage(house, chosen, seat, read_replay=replay_reader(folder, trusted=True))) as served,
        options.serving(served.app, access, "open URL to play; Ctrl-C ends it"),
    ):
        while not stopped():
            time.sleep(LOOK_S)
    records.require_kept()
    raise KeyboardInterrupt


def _in_terminal(house: PlayHost, player: str, seat: int | None, games: int, thoughts: bool) -> None:
    for number in range(games):
        taken = number % house.source.spec.num_seats if seat is None and games > 1 else seat
        try:
            went_on = play_in_terminal(
                house,
                player,
                taken,
                read=lambda: sys.stdin.readline() or None,
                say=click.echo,
                complain=lambda text: click.echo(text, err=True),
                thoughts=thoughts,
            )
        except InputEnded as error:
            raise click.ClickException(str(error)) from error
        if not went_on:
            return


class _Records:
    """Puts games into the ledger, through the process that trains the run if there is one."""

    def __init__(self, folder: RunFolder, source: GameSource) -> None:
        self._folder = folder
        self._source = source
        self._lost = 0

    def require_kept(self) -> None:
        """Raises an error if a finished game could not be recorded."""
        if self._lost:
            raise click.ClickException(f"finished games that are not recorded: {self._lost}")

    def keep(self, line: GameSeats, ended: Ended | None, reason: str) -> Kept:
        if not _is_writable(self._folder):
            return Kept(
                text=f"not recorded: {self._folder.path} is read-only", brief="not recorded: the run is read-only"
            )
        kept = self._keep(line, ended, reason)
        self._lost += ended is not None and kept.match_id is None
        return kept

    def _keep(self, line: GameSeats, ended: Ended | None, reason: str) -> Kept:
        folder, spec = self._folder, self._source.spec
        edit = abandoned(spec, line, reason) if ended is None else finished(spec, line, ended)
        try:
            answer, _ = ask(folder, edit)
        except (click.ClickException, StoreError, ConfigError, OSError) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            return Kept(text=f"not recorded: {said}")
        if not answer.done.startswith(RECORDED):
            return Kept(text=f"not recorded: {answer.refused or answer.failed}")
        match_id = int(answer.done.removeprefix(RECORDED))
        if ended is None:
            return Kept(text=f"{answer.done}, void: {reason}", match_id=match_id)
        try:
            path = write_replay(folder.path, self._source, game_address(innermost(self._source)), line, ended, match_id)
        except OSError as error:
            return Kept(text=f"{answer.done}; its replay is not kept: {error}", match_id=match_id)
        brief = f"{answer.done}, with its replay"
        return Kept(text=f"{answer.done}; {path}", match_id=match_id, replay=path.name, brief=brief)


def _is_writable(folder: RunFolder) -> bool:
    return all(os.access(path, os.W_OK) for path in (folder.path, folder.ledger_path))


def _check_person(person: str, opponents: Opponents) -> None:
    try:
        check_player_id(person)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--as'") from error
    if opponents.is_taken(person):
        raise click.BadParameter(f"{person!r} is a player of the run or a bot; take another name", param_hint="'--as'")

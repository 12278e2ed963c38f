"""Bots that a person names by address on the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ludus.config import ConfigError
from ludus.games.game import GameSource
from ludus.games.with_bots import fixed_addresses, named_address, with_bots
from ludus.league.players import check_player_id

if TYPE_CHECKING:
    from ludus.experiment import Experiment


def fix_bots(experiment: Experiment) -> Experiment:
    """With addresses that hold in any folder; refuses programs that are not there."""
    if not experiment.bots:
        return experiment
    try:
        return replace(experiment, bots=fixed_addresses(experiment.bots))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def add_bots(
    experiment: Experiment, players: Iterable[str], taken: Collection[str]
) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment with those of the players that are bots, given as [NAME=]ADDRESS, and the names of all.
    `taken` are names that mean somebody else."""
    names, found = _split(players, taken)
    if not found:
        return experiment, names
    try:
        return replace(experiment, bots={**experiment.bots, **fixed_addresses(found)}), names
    except ValueError as error:
        raise ConfigError(str(error)) from error


def add_game_bots(game: GameSource, players: Iterable[str]) -> tuple[GameSource, tuple[str, ...]]:
    """The same, for a game that no run plays. Refuses bots that are not there, before anything is played."""
    names, found = _split(players, game.bots())
    try:
        made = with_bots(game, fixed_addresses(found))
        made.bots()
        return made, names
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _split(players: Iterable[str], taken: Collection[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    names: list[str] = []
    found: dict[str, str] = {}
    for text in players:
        named = named_address(text)
        if named is None:
            names.append(text)
            continue
        name, address = named
        try:
            check_player_id(name)
        except ValueError as error:
            raise ConfigError(f"{text}: {error}") from None
        if name in taken or found.get(name, address) != address:
            raise ConfigError(f"{name!r} is somebody else here; write OTHER_NAME={address}")
        found[name] = address
        names.append(name)
    return tuple(names), found

"""The game of a replay: how it is recorded, and how it is made again without trusting the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus.config import apply_overrides, decode, encode
from ludus.config.annotations import UnknownPathError
from ludus.config.conversion import TYPE_TAG
from ludus.data.addresses import address_of
from ludus.data.replay import Replay
from ludus.games import builtin
from ludus.games.catalog import ADAPTERS, list_games, resolve
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolated
from ludus.games.lift import Lifted
from ludus.games.pointing import REMOTE
from ludus.lookup import loading, parse_settings


def find_game(address: str, settings: tuple[str, ...]) -> GameSource:
    """A game by name or address, with `option=value` settings."""
    with loading(address):
        source = resolve(address)
    overrides = parse_settings(settings)
    if isinstance(source, Isolated):  # options that the isolation does not have are those of the game
        own = {field.name for field in fields(source)}
        known = {name: name if name.partition(".")[0] in own else f"options.+{name}" for name in overrides}
        overrides = {known[name]: value for name, value in overrides.items()}
    try:
        made = apply_overrides(source, overrides) if overrides else source
    except UnknownPathError as error:
        longer = _with_option(address, error.path, overrides.get(error.path, "VALUE"))
        raise UnknownPathError(f"{error}{longer and f', or write {longer}'}", error.path) from None
    if address.partition(":")[0] in ADAPTERS:
        with loading(address):
            _ = made.spec  # some libraries check the name of a game and its options only here
    return made


def _with_option(address: str, name: str, value: str) -> str:
    """The address with this option; empty if addresses of this kind have no options."""
    if address.startswith(REMOTE):
        return f"{address}{'&' if '?' in address else '?'}{name}={value}"
    if address.startswith("openspiel:"):
        known = address.removesuffix(")")
        return f"'{known}{'(' if known == address else ','}{name}={value})'"
    return ""


def game_address(source: GameSource) -> tuple[str, dict[str, Any]]:
    """The address of a game and its options as a replay names them, without folders."""
    if isinstance(source, Isolated):
        return _without_folder(source.game), dict(source.options)
    maker: Any = source.factory if isinstance(source, Lifted) else type(source)
    options = _options(source)
    if isinstance(maker, partial):
        maker, options = maker.func, dict(maker.keywords)
    place, _, name = address_of(maker).rpartition(":")
    for prefix, adapter in ADAPTERS.items():
        if f"{place}:{name}" == adapter.source:
            if adapter.argument is None:
                return prefix, options
            return f"{prefix}:{_without_folder(options.pop(adapter.argument))}", options
    package, _, module = place.rpartition(".")
    return (module if package == builtin.__name__ else _without_folder(f"{place}:{name}")), options


def make_recorded_game(replay: Replay, trusted: GameSource | None = None) -> GameSource:
    """Make the game that a replay names. Raises ValueError unless the game came with Ludus or is the `trusted`
    one: a file must not choose which code runs."""
    if not _is_plain(replay.options):
        raise ValueError(f"its options for {replay.game} are not plain values")
    prefix, _, name = replay.game.partition(":")
    adapter = ADAPTERS.get(prefix)
    if adapter is not None and adapter.argument in replay.options:
        raise ValueError(f"its options name another game than {replay.game}")
    own = trusted if trusted is not None and game_address(trusted)[0] == replay.game else None
    known = [entry.address for entry in list_games() if entry.library is None]
    # With a colon, the name that a library is given may be the address of any code.
    of_library = adapter is not None and ":" not in name
    if not (own is not None or of_library or replay.game in known):
        raise ValueError(f"it is of {replay.game}, which did not come with ludus: name it with --game if you trust it")
    try:
        made = with_options(own if own is not None else resolve(replay.game), replay.options)
        _ = made.spec  # some games check their options only here
    except Exception as error:
        raise ValueError(f"its game cannot be made: {error}") from error
    return made


def with_options(source: GameSource, options: Mapping[str, Any]) -> GameSource:
    """The game with these options, given as plain values that are checked against their types."""
    made: Any = source
    if isinstance(made, Lifted):
        return replace(made, factory=partial(made.factory, **options)) if options else made
    if isinstance(made, Isolated):
        return replace(made, options={**made.options, **options})
    changed: GameSource = decode({**encode(made), **options})
    return changed


def _without_folder(address: str) -> str:
    place, colon, name = address.rpartition(":")
    return f"{Path(place).name}{colon}{name}" if colon else address


def _options(source: GameSource) -> dict[str, Any]:
    """All options as plain values, including defaults, which may change."""
    made: Any = source
    if isinstance(made, Lifted) or not is_dataclass(made):
        return {}
    written = encode(made)
    return {field.name: written[field.name] for field in fields(made) if field.init}


def _is_plain(value: Any) -> bool:
    """Whether a value contains no address of code."""
    if isinstance(value, dict):
        return all(not str(key).startswith("$") and key != TYPE_TAG and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return True

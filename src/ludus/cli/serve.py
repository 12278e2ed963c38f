"""`ludus serve`: a game server for remote actors. The server needs no torch, and the trainer does not need the game."""

from __future__ import annotations

import os
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ludus.cli.main import EndSignals
from ludus.cli.options import ABOVE_0, AT_LEAST_0, COUNT, set_option
from ludus.config import ConfigError, as_config_error
from ludus.config.conversion import MAX_BYTES, build_from, read_yaml
from ludus.games.catalog import SERVER_VARIABLE
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolation, isolate
from ludus.games.remote.messages import DEFAULT_PORT
from ludus.games.remote.source import with_client_options
from ludus.replays.replay_games import find_game, with_options
from ludus.system.machine import install_command
from ludus.system.network import is_loopback, read_token_file

if TYPE_CHECKING:
    from ludus.games.remote.outside_program import OutsideProgram
    from ludus.games.remote.server import GameServer, ServerConfig


_BUILDS_AT_ONCE = 4  # games with other options than the server's
_BUILD_WAIT_S = 10.0


@click.command("serve")
@click.argument("game", metavar="GAME")
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, help="0: any that is free.")
@click.option("--host", default="127.0.0.1", help="Address to listen on. Other machines need a token.")
@click.option("--workers", type=AT_LEAST_0, default=1, help="Processes for the tables of each client. 0: the game runs "
              "in the server itself, which is quickest, but a crash of the game ends all.")  # fmt: skip
@click.option("--step-seconds", type=ABOVE_0, default=20.0, help="A longer step is a hang: its tables are lost.")
@click.option("--memory-mb", type=ABOVE_0, help="A process of the game that takes more is ended.  [default: no limit]")
@click.option("--tables-max", type=COUNT, default=4096, help="Tables of all clients together.")
@click.option("--message-mb", type=click.IntRange(1, 1024), default=64, help="The longest message.")
@click.option("--token-file", type=click.Path(), help="A file with the token that clients must send.")
@click.option("--tls-cert", type=click.Path(), help="Certificate chain (PEM).")
@click.option("--tls-key", type=click.Path(), help="Its private key (PEM).")
@click.option("--program", type=click.Path(), help="FILE.yaml: another program that the game needs.")
@set_option("An option of GAME.", of="OPTION")
def serve_command(
    game: str,
    port: int,
    host: str,
    workers: int,
    step_seconds: float,
    memory_mb: float | None,
    tables_max: int,
    message_mb: int,
    token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    program: str | None,
    settings: tuple[str, ...],
) -> int:
    """Serve tables of GAME (a name from `ludus games`, or FILE.py:CLASS) to actors on other machines.

    \b
    ludus serve connect_four
    LUDUS_GAME_SERVER=127.0.0.1:23432 ludus train connect_four
    ludus check remote://127.0.0.1:23432/connect_four
    """
    try:
        from ludus.games.remote.server import GameServer, ServedGame, ServerConfig
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed; {install_command('server')} adds it") from error

    os.environ.pop(SERVER_VARIABLE, None)  # the game runs here
    config = ServerConfig(
        host=host,
        port=port,
        token=_read_token(token_file, host),
        tls=_read_tls(tls_cert, tls_key),
        tables_max=tables_max,
        message_bytes=message_mb * 2**20,
    )
    plain = find_game(game, settings)
    how = Isolation(processes=workers, step_seconds=step_seconds, memory_mb=memory_mb) if workers else None
    source = _hosted(plain, how)
    name = source.spec.name  # the game is tried before anybody is told that it is served
    outside = None if program is None else _outside_program(program)
    server = GameServer(
        ServedGame(name=game, source=source, with_options=_ClientGames(plain, how).build),
        config,
        program_state=lambda: None if outside is None else outside.state,
        why_not_ready=lambda: None if outside is None else outside.why_not_ready(),
        tell=_tell,
    )
    return _serve(server, outside, lambda bound: _announce(game, name, config, bound, workers))


def _serve(server: GameServer, outside: OutsideProgram | None, announce: Callable[[int], None]) -> int:
    """Serve until a signal ends it. Returns the exit code; `announce` gets the port."""
    signals = EndSignals()
    try:
        if outside is not None:
            outside.start()
        announce(server.start())
        signals.wait()
        _tell("ending")
    finally:
        quiet = server.stop()
        if outside is not None:
            outside.close()
    if not quiet:
        _tell("a game hangs in this process and is abandoned")
        sys.stdout.flush()
        os._exit(signals.exit_code)  # the interpreter would wait for its thread for ever
    return signals.exit_code


def _hosted(source: GameSource, how: Isolation | None) -> GameSource:
    if how is None:
        return source
    with as_config_error(after="; or let it run in the server itself with --workers 0"):
        return isolate(source, how)


class _ClientGames:
    """Builds the game with the options of clients, in a process of its own first: one that takes too long or too much
    memory is ended, and the server goes on."""

    def __init__(self, plain: GameSource, how: Isolation | None) -> None:
        """`how` the tables are isolated; None: they are not, but trying out options is, if the game can be."""
        self._plain, self._how = plain, how
        self._building = threading.BoundedSemaphore(_BUILDS_AT_ONCE)

    def build(self, options: Mapping[str, Any]) -> GameSource:
        """Raises ValueError."""
        try:
            isolated = isolate(self._plain, self._how or Isolation())
        except ValueError:
            if self._how is not None:
                raise
            return with_client_options(self._plain, options, with_options)
        chosen = with_client_options(isolated, options, with_options)
        if not self._building.acquire(timeout=_BUILD_WAIT_S):
            raise ValueError("too many clients ask for other options at the same time; try again later")
        try:
            _ = chosen.spec
        finally:
            self._building.release()
        return chosen if self._how is not None else with_client_options(self._plain, options, with_options)


def _read_token(file: str | None, host: str) -> str | None:
    if file is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines: give --token-file, a file with a secret token "
            "that clients send"
        )
    with as_config_error():
        return None if file is None else read_token_file(file)


def _read_tls(cert: str | None, key: str | None) -> tuple[bytes, bytes] | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key go together")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        why = error.reason or "they are no PEM files"
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate with its private key: {why}"
        ) from error
    return Path(key).read_bytes(), Path(cert).read_bytes()


def _outside_program(file: str) -> OutsideProgram:
    from ludus.games.remote.outside_program import OutsideProgram, ProgramConfig

    path = Path(file)
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{file}: more than {MAX_BYTES} bytes")
    content: Any = read_yaml(path.read_text(encoding="utf-8"), file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: write `command: [...]` and what else the program needs")
    # Paths in the file are meant from where it lies, wherever the server is started.
    folder = path.parent / str(content.get("folder", "."))
    with as_config_error(FileNotFoundError, before=f"{file}: "):
        config: ProgramConfig = build_from(ProgramConfig, {**content, "folder": str(folder)}, file)
        return OutsideProgram(config, _tell)


def _announce(game: str, name: str, config: ServerConfig, port: int, workers: int) -> None:
    place = f"{f'[{config.host}]' if ':' in config.host else config.host}:{port}"
    where = f"{workers} process{'es' * (workers > 1)} a client" if workers else "the server itself"
    click.echo(f"{name} at remote://{place}/{game}, played in {where}; Ctrl-C ends")
    click.echo(f"  LUDUS_GAME_SERVER={place} ludus train RECIPE")
    if config.token is not None:
        click.echo("  clients need LUDUS_GAME_TOKEN_FILE, a file with the same token")
    if config.tls is not None:
        click.echo("  clients need LUDUS_GAME_CA_FILE, the certificates that this server is known by")
    elif config.token is not None:
        click.echo("  the token and the games travel in the clear; --tls-cert and --tls-key hide them")
    sys.stdout.flush()


def _tell(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()

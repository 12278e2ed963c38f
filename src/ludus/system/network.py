"""Network interfaces of this machine, limits on the connections of a server, and tokens."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

SETTING = "cluster.network_interface"
LOOPBACKS = ("lo", "lo0")
_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of Linux: the IPv4 address of an interface."""


class NoSuchInterfaceError(ValueError):
    """This machine has no interface of that name, or none that leads to the peer."""


def find_interface(asked: str | None, peer: str) -> str:
    """The interface that `asked` names; None: the one through which this machine reaches `peer`."""
    present = [name for _, name in socket.if_nameindex()]
    if asked is not None:
        if asked not in present:
            raise NoSuchInterfaceError(
                f"{SETTING}: there is no interface {asked!r} here; there are {', '.join(present)}"
            )
        return asked
    if ipaddress.ip_address(peer).is_loopback:
        return next(name for name in present if name in LOOPBACKS)
    own = own_address_towards(peer)
    for name in present:
        if address_of(name) == own:
            return name
    raise NoSuchInterfaceError(
        f"{SETTING}: no interface has {own}, from which {peer} is reached; name one of {', '.join(present)}"
    )


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def own_address_towards(peer: str) -> str:
    """The address of this machine that `peer`, an address or name, sees it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # nothing is sent: the kernel only looks up the route
        return str(probe.getsockname()[0])


def address_of(interface: str) -> str:
    """Its IPv4 address; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        asked = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), _GET_ADDRESS, asked)[20:24])
    return ""


class Strangers:
    """Connections of a server whose first request has not arrived or was not accepted yet. There is room for a few:
    when one more comes, the oldest is closed. Half requests therefore never keep whole ones out."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._closing: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def add(self, connection: object, close: Callable[[], object]) -> None:
        with self._lock:
            self._closing[connection] = close
            late = next(iter(self._closing)) if len(self._closing) > self._most else None
            close_late = None if late is None else self._closing.pop(late)
        if close_late is not None:
            close_late()

    def remove(self, connection: object) -> None:
        """The connection has ended, or its request is accepted. Does nothing the second time."""
        with self._lock:
            self._closing.pop(connection, None)


TOKEN_VARIABLE = "LUDUS_TOKEN"
"""The environment variable with the token itself."""
RAY_TOKEN_VARIABLE, RAY_PATH_VARIABLE, RAY_MODE_VARIABLE = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


SHORTEST_TOKEN = 16
"""Characters. A wrong token costs its sender half a second at most, so shorter ones could be guessed."""
_SECRETS = Path("/run/secrets")
"""Container engines show secrets here, readable by all users of the container and by nobody else."""


class TokenError(ValueError):
    """There is no token, it is too short, or its file cannot be used."""


def make_token_file(path: str | Path) -> Path:
    """Write a new token to a file. An existing file is kept if nobody else can read it."""
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        read_token_file(path)
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path


def read_token_file(path: str | Path) -> str:
    """The token in a file that only its owner can read."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TokenError(f"token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise TokenError(f"token file {path} is not text") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and _SECRETS not in path.absolute().parents:
        raise TokenError(f"token file {path} can be read by others (mode {stat.S_IMODE(mode):03o}): chmod 600 {path}")
    if not token:
        raise TokenError(f"token file {path} is empty; delete it and let Ludus make another")
    return require_strong(token, f"token file {path}")


def require_strong(token: str, where: str) -> str:
    """The token, if it is one word that cannot be guessed. `where` it was found goes into the error."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(f"{where}: a token is one line of printable ASCII without spaces")
    if len(token) < SHORTEST_TOKEN:
        raise TokenError(
            f"{where}: the token has {len(token)} characters, fewer than {SHORTEST_TOKEN}, and could be guessed; "
            "`openssl rand -hex 32` makes a good one"
        )
    return token


def token_from(environment: Mapping[str, str]) -> str | None:
    """The token of the environment: LUDUS_TOKEN, or one of Ray's variables; None if there is none."""
    for variable in (TOKEN_VARIABLE, RAY_TOKEN_VARIABLE):
        if token := environment.get(variable, "").strip():
            return require_strong(token, variable)
    path = environment.get(RAY_PATH_VARIABLE)
    return read_token_file(path) if path else None


def with_token(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment for programs of Ray, which then require this token and send it."""
    without = {name: value for name, value in environment.items() if name != RAY_PATH_VARIABLE}
    return {**without, RAY_MODE_VARIABLE: "token", RAY_TOKEN_VARIABLE: token}

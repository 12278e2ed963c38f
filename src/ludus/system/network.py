"""Network interfaces of this machine, and the tokens of clusters."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import secrets
import socket
import stat
import struct
from collections.abc import Mapping
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


TOKEN_VARIABLE = "LUDUS_TOKEN"
"""The environment variable with the token itself."""
RAY_TOKEN_VARIABLE, RAY_PATH_VARIABLE, RAY_MODE_VARIABLE = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


class TokenError(ValueError):
    """There is no token, or its file cannot be used."""


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
    path = Path(path)
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TokenError(f"token file {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokenError(f"token file {path} can be read by others (mode {stat.S_IMODE(mode):03o}): chmod 600 {path}")
    if not token:
        raise TokenError(f"token file {path} is empty; delete it and let Ludus make another")
    return token


def token_from(environment: Mapping[str, str]) -> str | None:
    """The token of the environment: LUDUS_TOKEN, or one of Ray's variables; None if there is none."""
    for variable in (TOKEN_VARIABLE, RAY_TOKEN_VARIABLE):
        if environment.get(variable, "").strip():
            return environment[variable].strip()
    path = environment.get(RAY_PATH_VARIABLE)
    return read_token_file(path) if path else None


def with_token(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment for programs of Ray, which then require this token and send it."""
    without = {name: value for name, value in environment.items() if name != RAY_PATH_VARIABLE}
    return {**without, RAY_MODE_VARIABLE: "token", RAY_TOKEN_VARIABLE: token}

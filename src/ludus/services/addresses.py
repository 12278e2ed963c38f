"""Where services listen: `unix:PATH` inside a machine, `tcp:HOST:PORT` between machines."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST_SOCKET_PATH = 100
"""The system allows 107 bytes, on some systems 103."""


def listen_unix(path: Path) -> tuple[socket.socket, str]:
    """A socket at `path` that only this user may connect to, and its address."""
    path = path.absolute()
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as short:
            server.bind(short)
            os.chmod(short, 0o600)  # before it listens: nobody has connected yet
        server.listen(128)
    except OSError as error:
        server.close()
        raise OSError(error.errno, f"cannot listen: {error.strerror}", str(path)) from error
    return server, f"unix:{path}"


def listen_tcp(host: str, token: str) -> tuple[socket.socket, str]:
    """A socket at a free port of `host`, and its address. Other machines are let in by token only."""
    if not token and not is_loopback(host):
        raise ValueError(f"refused to listen on {host} without a token: other machines could connect")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family, backlog=128)
    return server, f"tcp:{host}:{server.getsockname()[1]}"


def connect(address: str, timeout_s: float) -> socket.socket:
    """Raises OSError with the address in it."""
    kind, _, place = address.partition(":")
    try:
        if kind == "unix":
            link = socket.socket(socket.AF_UNIX)
            try:
                link.settimeout(timeout_s)
                with _short(Path(place)) as short:
                    link.connect(short)
            except BaseException:
                link.close()
                raise
        elif kind == "tcp":
            host, _, port = place.rpartition(":")
            link = socket.create_connection((host, int(port)), timeout=timeout_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        else:
            raise ValueError(f"{address!r} is no address of a service: unix:PATH or tcp:HOST:PORT")
    except OSError as error:
        raise OSError(error.errno, f"cannot connect: {error.strerror or error}", address) from error
    return link


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path, or a shorter way to it: run folders lie deeper than the name of a socket may be long."""
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

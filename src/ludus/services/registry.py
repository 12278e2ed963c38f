"""Registries: they hold which process serves which service, and its address."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from ludus.services.endpoints import ServiceError, service
from ludus.system.network import is_loopback

REGISTRY_VARIABLE = "LUDUS_SERVICES"  # the environment variable by which workers find the registry of their run
TOKEN_VARIABLE = "LUDUS_SERVICES_TOKEN"  # the environment variable with its token, if the registry is on TCP
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a service."""

    service: str
    name: str  # such as `reward-0`. A process that replaces it keeps the name.
    address: str  # unix:PATH or tcp:HOST:PORT
    host: str  # the machine. A unix socket can be reached from there only.
    pid: int


class Registry(Protocol):
    """Instances are announced and found here. An entry may belong to a process that has just died."""

    @property
    def token(self) -> str:
        """Instances on TCP reject callers without it; empty: they accept everyone."""

    def declare(self, service: str) -> None:
        """There will be instances of it: callers wait for one, instead of failing."""

    def announce(self, instance: Instance) -> None: ...  # replaces an earlier instance of the same name
    def withdraw(self, instance: Instance) -> None: ...  # does nothing if another instance has replaced it
    def find(self, service: str) -> list[Instance]: ...
    def names(self) -> list[str]: ...  # services that were declared or announced


class MemoryRegistry:
    """A registry inside one process, and a service for others. It may forget instances that stay silent."""

    def __init__(self, token: str = "", forget_after_s: float = math.inf) -> None:
        self.token = token
        self._forget_after_s = forget_after_s
        self._instances: dict[str, dict[str, tuple[Instance, float]]] = {}

    @service(idempotent=True)
    def declare(self, service: str) -> None:
        self._instances.setdefault(check_service_name(service), {})

    @service(idempotent=True)
    def announce(self, instance: Instance) -> None:
        instance = msgspec.convert(instance, Instance)  # a struct arrives as a mapping
        self.declare(instance.service)
        self._instances[instance.service][instance.name] = instance, time.monotonic()

    @service(idempotent=True)
    def withdraw(self, instance: Instance) -> None:
        instance = msgspec.convert(instance, Instance)
        known = self._instances.get(instance.service, {})
        if instance.name in known and known[instance.name][0] == instance:
            del known[instance.name]

    @service(idempotent=True)
    def find(self, service: str) -> list[Instance]:
        old = time.monotonic() - self._forget_after_s
        return [one for one, announced in self._instances.get(service, {}).values() if announced > old]

    @service(idempotent=True)
    def names(self) -> list[str]:
        return list(self._instances)


class FileRegistry:
    """A registry as files on a disk that all its users see: a folder per service, a file per instance."""

    def __init__(self, folder: str | Path, token: str = "") -> None:
        self.folder = Path(folder)
        self.token = token

    def declare(self, service: str) -> None:
        (self.folder / check_service_name(service)).mkdir(parents=True, exist_ok=True)

    def announce(self, instance: Instance) -> None:
        self.declare(instance.service)
        path = self._path(instance)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_bytes(msgspec.json.encode(instance))
        aside.replace(path)

    def withdraw(self, instance: Instance) -> None:
        path = self._path(instance)
        if _read(path) == instance:
            path.unlink(missing_ok=True)

    def find(self, service: str) -> list[Instance]:
        found = (_read(path) for path in sorted((self.folder / check_service_name(service)).glob("*.json")))
        return [instance for instance in found if instance is not None]

    def names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        return []

    def _path(self, instance: Instance) -> Path:
        return self.folder / check_service_name(instance.service) / f"{check_service_name(instance.name)}.json"


def _read(path: Path) -> Instance | None:
    with suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Instance)
    return None


def check_service_name(name: str) -> str:
    """Raises ValueError for a name that cannot name a file."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a service: use letters, digits, _ . and -, at most 64 of them")
    return name


def here() -> str:
    """The name of this machine."""
    return socket.gethostname()


def can_reach(instance: Instance) -> bool:
    return instance.address.startswith("tcp:") or instance.host == here()


def registry_address(environment: Mapping[str, str]) -> str:
    """The address that `ludus train` has given to its workers."""
    address = environment.get(REGISTRY_VARIABLE, "")
    if not address:
        raise ServiceError(
            "there are no services here: `ludus train` starts those that the experiment lists in `services` "
            f"and tells its workers; elsewhere set {REGISTRY_VARIABLE}, or hand a registry to Solver"
        )
    return address


LONGEST_SOCKET_PATH = 100  # the system allows 107 bytes, on some systems 103


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
    """A socket at a free port of `host`, and its address. Other machines need a token."""
    if not token and not is_loopback(host):
        raise ValueError(f"refused to listen on {host} without a token: other machines could connect")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family, backlog=128)
    return server, f"tcp:{host}:{server.getsockname()[1]}"


def connect(address: str, timeout_s: float) -> socket.socket:
    """Raises OSError with the address in it."""
    kind, _, path = address.partition(":")
    try:
        if kind == "unix":
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.settimeout(timeout_s)
                with _short(Path(path)) as short:
                    connected.connect(short)
            except BaseException:
                connected.close()
                raise
        elif kind == "tcp":
            host, _, port = path.rpartition(":")
            connected = socket.create_connection((host, int(port)), timeout=timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        else:
            raise ValueError(f"{address!r} is no address of a service: unix:PATH or tcp:HOST:PORT")
    except OSError as error:
        raise OSError(error.errno, f"cannot connect: {error.strerror or error}", address) from error
    return connected


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path, or a shorter one to the same file: the names of sockets are limited, and run folders lie deep."""
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

"""Registries: in a process, as files, and over TCP with a token; all do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_hosting import Sums, hosted

from ludus.services.endpoints import CallRefused, ServiceError
from ludus.services.registry import FileRegistry, Instance, MemoryRegistry, Registry, listen_tcp, listen_unix
from ludus.services.remote_registry import RemoteRegistry, open_registry
from ludus.services.solver import Solver


def instance(name: str = "sums-0", pid: int = 1) -> Instance:
    return Instance(service="sums", name=name, address="tcp:127.0.0.1:9", host="here", pid=pid)


@pytest.fixture(params=["memory", "files", "tcp"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if request.param == "memory":
        yield MemoryRegistry()
    elif request.param == "files":
        yield FileRegistry(tmp_path / "services")
    else:
        with hosted(MemoryRegistry(), MemoryRegistry(), name="registry-0", token="secret") as found:
            remote = RemoteRegistry(found.instance.address, "secret")
            yield remote
            remote.close()


def test_who_is_announced_is_found(registry: Registry) -> None:
    assert registry.names() == []
    registry.declare("sums")
    assert registry.names() == ["sums"]
    assert registry.find("sums") == []
    registry.announce(instance())
    registry.announce(instance("sums-1"))
    assert registry.find("sums") == [instance(), instance("sums-1")]
    registry.withdraw(instance("sums-1"))
    assert registry.find("sums") == [instance()]
    assert registry.find("nobody") == []


def test_a_successor_is_not_withdrawn_by_its_predecessor(registry: Registry) -> None:
    registry.announce(instance(pid=1))
    registry.announce(instance(pid=2))
    registry.withdraw(instance(pid=1))
    assert registry.find("sums") == [instance(pid=2)]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "new\nline"])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a service"):
        FileRegistry(tmp_path).declare(name)
    assert list(tmp_path.iterdir()) == []


def test_half_written_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    registry = FileRegistry(tmp_path)
    registry.announce(instance())
    (tmp_path / "sums" / "torn.json").write_bytes(b'{"service": "su')
    (tmp_path / "sums" / "other.json").write_bytes(b"\xff\xfe")
    assert registry.find("sums") == [instance()]


def test_who_falls_silent_is_forgotten() -> None:
    service = MemoryRegistry(forget_after_s=0.0)
    service.announce({"service": "sums", "name": "sums-0", "address": "tcp:h:1", "host": "h", "pid": 1})
    assert service.find("sums") == []
    assert service.names() == ["sums"]


def test_a_remote_registry_wants_its_token_and_comes_back() -> None:
    with hosted(MemoryRegistry(), MemoryRegistry(), name="registry-0", token="secret") as found:
        with pytest.raises(CallRefused, match="a wrong token"):
            RemoteRegistry(found.instance.address, "guess").names()
        remote = RemoteRegistry(found.instance.address, "secret")
        remote.declare("sums")
        assert remote._connection is not None
        remote._connection.close()  # the connection breaks
        assert remote.names() == ["sums"]
        found.die()
        with pytest.raises(ServiceError, match=r"registry|lost"):
            remote.names()
        with pytest.raises(ServiceError, match="cannot be reached"):
            remote.names()
        remote.close()


def test_services_are_found_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(MemoryRegistry(), MemoryRegistry(), name="registry-0", token="secret") as found:
        monkeypatch.setenv("LUDUS_SERVICES", found.instance.address)
        monkeypatch.setenv("LUDUS_SERVICES_TOKEN", "secret")
        registry = open_registry(found.instance.address)
        assert isinstance(registry, RemoteRegistry)
        with hosted(Sums(), registry, token="secret"), Solver("sums") as solver:
            assert solver.solve("add", 1) == 2
        registry.close()


def test_nobody_listens_to_other_machines_without_a_token() -> None:
    with pytest.raises(ValueError, match=r"refused to listen on 0\.0\.0\.0 without a token"):
        listen_tcp("0.0.0.0", "")
    server, address = listen_tcp("127.0.0.1", "")
    assert address == f"tcp:127.0.0.1:{server.getsockname()[1]}"
    server.close()


def test_only_the_owner_may_connect_and_paths_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server, address = listen_unix(deep / "sums-0.sock")
    server.close()
    assert address == f"unix:{deep}/sums-0.sock"
    assert (deep / "sums-0.sock").stat().st_mode & 0o777 == 0o600
    registry = FileRegistry(deep)
    with hosted(Sums(), registry, folder=deep), Solver("sums", registry=registry) as solver:
        assert solver.solve("add", 1) == 2

"""What services ask for: checked against the machine, named when it is missing, GPUs dealt out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ludus import Resources, Solver, UserService
from ludus.services.host import serving
from ludus.services.resources import Machine, NotEnough, allot, cpus_of, custom_of
from ludus.system.machine import GPUS_VARIABLE

SMALL = Machine(cores=4, memory_mb=1_000, gpus=("0", "1", "2"))


def asking(count: int = 1, **resources: Any) -> UserService:
    return UserService(address="a.py:A", count=count, resources=Resources(**resources))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cpus": -1.0}, "Resources.cpus must be at least 0 and finite, got -1"),
        ({"gpus": float("nan")}, "Resources.gpus must be at least 0 and finite, got nan"),
        ({"gpus": 1.5}, "resources.gpus must be a whole number above 1, got 1.5"),
        ({"memory_mb": float("inf")}, "Resources.memory_mb must be at least 0 and finite, got inf"),
        ({"custom": {"GPU": 1}}, "resources.custom: 'GPU' is gpus here"),
        ({"custom": {"big_disk": 0}}, "resources.custom: 'big_disk' must be above 0 and finite, got 0"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Resources(**wrong)


def test_resources_name_themselves() -> None:
    assert str(Resources()) == "nothing"
    assert str(Resources(cpus=2, memory_mb=500, custom={"big_disk": 1})) == "2 cpus, 500 memory_mb, 1 big_disk"


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ({"judge": asking(cpus=5)}, "services.judge asks for 5 cpus, but this machine has 4$"),
        (
            {"one": asking(cpus=3), "two": asking(count=2, cpus=1)},
            "services.two asks for 2 x 1 cpus, but this machine has 4, of which services before it take 3",
        ),
        ({"judge": asking(memory_mb=2e3)}, "services.judge asks for 2000 memory_mb, .* has 1000"),
        ({"judge": asking(count=2, gpus=2)}, "services.judge asks for 2 x 2 gpus, but this machine has 3$"),
        (
            {"one": asking(count=3, gpus=0.6), "two": asking(gpus=0.5)},
            "services.two asks for 0.5 gpus, but this machine has 3, of which services before it take 1.8",
        ),
    ],
)
def test_what_is_missing_is_named(services: dict[str, UserService], message: str) -> None:
    with pytest.raises(NotEnough, match=message):
        allot(services, SMALL)


def test_a_gpu_that_is_not_there_is_named() -> None:
    without = Machine(cores=4, memory_mb=1_000, gpus=())
    with pytest.raises(NotEnough, match=r"services\.judge asks for 1 gpus, but this machine has none"):
        allot({"judge": asking(gpus=1)}, without)
    assert allot({"judge": asking(cpus=4), "plain": UserService(address="a.py:A")}, without) == {}


def test_gpus_are_dealt_out_from_the_last() -> None:
    services = {"large": asking(gpus=2), "small": asking(count=3, gpus=1 / 3)}
    assert allot(services, SMALL) == {"large-0": ("2", "1"), "small-0": ("0",), "small-1": ("0",), "small-2": ("0",)}
    shares = {"half": asking(count=2, gpus=0.5), "most": asking(gpus=0.7), "rest": asking(gpus=0.3)}
    dealt = allot(shares, SMALL)
    assert dealt == {"half-0": ("2",), "half-1": ("2",), "most-0": ("1",), "rest-0": ("1",)}


def test_what_all_ask_for_together() -> None:
    services = {
        "one": asking(count=2, cpus=1.5, custom={"disk": 1}),
        "two": asking(cpus=1, custom={"disk": 2, "big": 1}),
        "plain": UserService(address="a.py:A"),
    }
    assert cpus_of(services) == 4
    assert custom_of(services) == {"disk": 4, "big": 1}


@pytest.fixture
def three_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as nvidia-smi says."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(GPUS_VARIABLE, raising=False)


CODE = """
import os
from ludus import service

class Clerk:
    @service()
    def surroundings(self):
        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        return {name: os.environ.get(name) for name in names}
"""


def test_each_process_gets_its_gpus_and_threads(
    tmp_path: Path, three_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.services.resources.usable_cores", lambda: 8.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    (tmp_path / "clerk.py").write_text(CODE)
    address = f"{tmp_path / 'clerk.py'}:Clerk"
    services = {
        "on_gpu": UserService(address=address, count=2, resources=Resources(cpus=2.5, gpus=1)),
        "plain": UserService(address=address),
    }
    with serving(services, tmp_path / "place") as registry:
        with Solver("on_gpu", registry=registry) as solver:
            found = [solver.solve("surroundings") for _ in range(2)]
        assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in found) == ["1", "2"]
        assert {one["OMP_NUM_THREADS"] for one in found} == {one["MKL_NUM_THREADS"] for one in found} == {"2"}
        with Solver("plain", registry=registry) as solver:
            plain = solver.solve("surroundings")
        assert plain == {"CUDA_VISIBLE_DEVICES": None, "OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "1"}


def test_nothing_starts_if_one_asks_for_too_much(tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(CODE)
    address = f"{tmp_path / 'clerk.py'}:Clerk"
    services = {
        "plain": UserService(address=address),
        "large": UserService(address=address, resources=Resources(memory_mb=1e12)),
    }
    with (
        pytest.raises(NotEnough, match=r"services\.large asks for 1e\+12 memory_mb"),
        serving(services, tmp_path / "place"),
    ):
        pass
    assert not list((tmp_path / "place" / "logs").iterdir())

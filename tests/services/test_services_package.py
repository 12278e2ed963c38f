"""The names that a user imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ludus.services


@pytest.mark.parametrize(
    "name", ["Publisher", "Resources", "ServiceError", "Solver", "Subscriber", "UserService", "service"]
)
def test_a_public_name_is_there(name: str) -> None:
    assert name in ludus.services.__all__
    assert getattr(ludus.services, name) is not None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="it has Publisher, Resources, ServiceError, Solver"):
        _ = ludus.services.Slover  # type: ignore[attr-defined]


def test_a_service_needs_neither_torch_nor_the_network_to_be_imported() -> None:
    code = "import sys; from ludus.services import service, UserService;print({'torch', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

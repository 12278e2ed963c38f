"""What may be marked as a service."""

from __future__ import annotations

import subprocess
import sys

import pytest
from service_hosting import Sums

from ludus import service
from ludus.services.endpoints import endpoints_of


def test_only_marked_methods_can_be_called() -> None:
    found = endpoints_of(Sums())
    assert "add" in found
    assert "not_for_others" not in found
    assert found["double"].terms.batch == 4
    assert not found["tell"].terms.reply


def test_a_class_without_marks_is_refused() -> None:
    with pytest.raises(TypeError, match="dict has no methods marked"):
        endpoints_of({})


def test_an_inherited_method_keeps_its_terms() -> None:
    class More(Sums):
        def double(self, requests: list[float]) -> list[float]:  # no mark: not for others any more
            return requests

    found = endpoints_of(More())
    assert found["echo"].terms.idempotent
    assert "double" not in found


@pytest.mark.parametrize(("name", "value"), [("batch", 0), ("max_delay_ms", -1.0)])
def test_terms_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        service(**{name: value})  # type: ignore[arg-type]


def test_a_batched_method_takes_the_list_alone() -> None:
    with pytest.raises(TypeError, match="pair must take one argument, the list of requests"):

        class Wrong:
            @service(batch=2)
            def pair(self, left: list[int], right: list[int]) -> list[int]:
                return left


def test_a_service_needs_neither_torch_nor_the_network_to_be_imported() -> None:
    code = "import sys; from ludus import service, UserService;print({'torch', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

from __future__ import annotations

import pytest

from ludus.games.remote import shortcut


@pytest.fixture(params=["shortcut", "grpc"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which tables on this machine are reached: both ways must behave alike."""
    name: str = request.param
    monkeypatch.setattr(shortcut, "SUPPORTED", shortcut.SUPPORTED and name == "shortcut")
    return name

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    GameSpec,
    ObservationSpec,
    SeatKind,
    differences,
    kind_from_json,
    kind_to_json,
    spec_from_json,
    spec_to_json,
)
from ludus.games.catalog import list_games, resolve

SPECS = [resolve(entry.address).spec for entry in list_games() if entry.library is None]
KINDS = [kind for spec in SPECS for kind in spec.kinds]
ORDERS = replace(
    KINDS[0],
    name="with categories",
    observation=ObservationSpec(parts={"units": Entities(maximum=2, features=3, types=4, categories=(5, 6))}),
)


@pytest.mark.parametrize("kind", [*KINDS, ORDERS], ids=lambda kind: str(kind.name))
def test_a_kind_comes_back(kind: SeatKind) -> None:
    again = kind_from_json(json.loads(json.dumps(kind_to_json(kind))))
    assert again == kind
    assert differences(again, kind) == {}
    assert list(again.action.heads) == list(kind.action.heads)


def test_categories_are_written_as_a_list_and_only_where_there_are_some() -> None:
    written = kind_to_json(ORDERS)["observation"]["units"]
    assert written == json.loads(json.dumps(written))
    plain = replace(ORDERS, observation=ObservationSpec(parts={"units": Entities(maximum=2, features=3)}))
    assert "categories" not in kind_to_json(plain)["observation"]["units"]
    with pytest.raises(ValueError, match="must fit into 3 features"):
        Entities(maximum=2, features=3, types=4, categories=(5, 6, 7))


def test_differences_are_named() -> None:
    kind = resolve("skirmish").spec.kinds[0]
    heads = dict(kind.action.heads)
    other = replace(kind, name="x", action=ActionSpec(heads=heads | {"delay": Choice(num=9, masked=False)}))
    assert differences(kind, other) == {"action.delay.num": (8, 9)}
    turned = {name: heads[name] for name in ("delay", "action", *heads)}
    assert differences(kind, replace(kind, action=ActionSpec(heads=turned))) == {"action": (list(heads), list(turned))}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.name))
def test_a_whole_game_comes_back(spec: GameSpec) -> None:
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec


def test_what_is_no_spec_is_refused() -> None:
    written = spec_to_json(resolve("kuhn").spec)
    with pytest.raises(TypeError, match="colour"):
        spec_from_json(written | {"colour": "red"})
    with pytest.raises(ValueError, match="teams"):
        spec_from_json(written | {"teams": [0, 2]})

"""Experiments as typed code: exact JSON, overrides by path, errors that name the nearest right thing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import pytest
from hypothesis import given, strategies as st

from ludus.config import MISSING, ConfigError, apply_overrides, decode, diff, encode, load_yaml, override, paths
from ludus.config.conversion import MAX_BYTES
from ludus.data.addresses import load_address
from ludus.data.schedules import Exponential, Linear, Schedule
from ludus.data.specs import Vector

HERE = __name__


class Matchmaker(Protocol):
    """Two methods, so that a class with one of them does not pass."""

    def choose(self, wins: float) -> float: ...
    def describe(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Prioritised:
    power: float = 2.0

    def choose(self, wins: float) -> float:
        return float((1 - wins) ** self.power)

    def describe(self) -> str:
        return "prioritised"


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    def choose(self, wins: float) -> float:
        return 1.0

    def describe(self) -> str:
        return "uniform"


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfAMatchmaker:
    def choose(self, wins: float) -> float:
        return 1.0


class Hook(Protocol):
    def __call__(self, value: float) -> float: ...


class Side(Enum):
    FIRST = 1
    SECOND = 2


def double(value: float) -> float:
    return 2 * value


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    batch_size: int = 32
    """Trajectories in one update.

    More of them make it steadier."""
    num_slots: int = 64
    learning_rate: Schedule = 1e-3
    hidden: tuple[int, ...] = (64, 64)
    device: Literal["cpu", "cuda"] = "cpu"
    clip: float | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.num_slots < self.batch_size:
            raise ValueError(f"num_slots {self.num_slots} must be at least batch_size {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str = "tree"
    learner: Learner = field(default_factory=Learner)
    matchmaker: Matchmaker = field(default_factory=Prioritised)
    roles: Mapping[str, Learner] = field(default_factory=lambda: MappingProxyType({"main": Learner()}))
    pair: tuple[Learner, float] = (Learner(), 0.5)
    teacher: Learner | None = None
    side: Side = Side.FIRST
    shape: Callable[[float], float] = double
    kind: type = Learner
    run: Path | None = None
    anything: Any = None
    counts: Mapping[int, float] = field(default_factory=dict)
    hooks: tuple[Hook, ...] = ()
    branches: tuple[tuple[float, Matchmaker], ...] = ((0.5, Prioritised()), (0.5, Uniform()))
    computed: int = field(init=False, default=0)


def through_json(tree: Any) -> Any:
    return decode(json.loads(json.dumps(encode(tree), allow_nan=False)))


def test_a_component_carries_the_address_of_its_class() -> None:
    encoded = encode(Tree())
    assert encoded["type"] == f"{HERE}:Tree"
    assert encoded["learner"]["type"] == f"{HERE}:Learner"
    assert encoded["shape"] == {"$ref": f"{HERE}:double"}
    assert encoded["learner"]["hidden"] == [64, 64]
    assert "computed" not in encoded


learners = st.builds(
    lambda batch, extra, **rest: Learner(batch_size=batch, num_slots=batch + extra, **rest),
    st.integers(1, 10**20),
    st.integers(0, 10**6),
    learning_rate=st.floats(allow_nan=False)
    | st.builds(Linear, start=st.floats(allow_nan=False), end=st.floats(allow_nan=False))
    | st.builds(Exponential, start=st.floats(1e-9, 1), end=st.floats(1e-9, 1)),
    hidden=st.lists(st.integers()).map(tuple),
    device=st.sampled_from(["cpu", "cuda"]),
    clip=st.none() | st.floats(allow_nan=False),
    shuffle=st.booleans(),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | learners,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=8,
)


@given(
    tree=st.builds(
        Tree,
        name=st.text(),
        learner=learners,
        matchmaker=st.just(Uniform()) | st.builds(Prioritised, power=st.floats(allow_nan=False)),
        roles=st.dictionaries(st.text(), learners, max_size=3),
        pair=st.tuples(learners, st.floats(allow_nan=False)),
        teacher=st.none() | learners,
        side=st.sampled_from(Side),
        kind=st.sampled_from([Learner, Tree, int]),
        run=st.none() | st.just(Path("runs/a")),
        anything=anything,
        counts=st.dictionaries(st.integers(), st.floats(allow_nan=False), max_size=3),
    )
)
def test_json_gives_the_same_tree_back(tree: Tree) -> None:
    again = through_json(tree)
    assert again == tree
    assert encode(again) == encode(tree)
    assert diff(tree, again) == []
    assert type(again.anything) is type(tree.anything)


def test_numbers_that_json_lacks_survive() -> None:
    assert through_json(Learner(clip=math.inf)).clip == math.inf
    assert math.isnan(through_json(Learner(clip=math.nan)).clip)


def test_classes_of_a_users_file_survive(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Mine:\n    size: int = 3\n"
    )
    mine = load_address(f"{file}:Mine")(size=4)
    assert encode(mine)["type"] == f"{file}:Mine"
    assert through_json(mine) == mine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batchsize": 3}, "unknown field 'batchsize': did you mean 'batch_size'?"),
        ({"batch_size": "3"}, "batch_size: expected int, got '3'"),
        ({"batch_size": True}, "batch_size: expected int, got True"),
        ({"device": "tpu"}, "device: expected 'cpu' | 'cuda', got 'tpu'"),
        ({"num_slots": 3}, "num_slots 3 must be at least batch_size 32"),
        ({"type": f"{HERE}:Lerner"}, "did you mean 'Learner'?"),
        ({"type": f"{HERE}:double"}, "is not a dataclass"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode({**encode(Learner()), **change})
    assert message in str(caught.value)


def test_decoding_names_the_place_and_what_is_missing() -> None:
    data = encode(Tree())
    data["roles"]["main"]["clip"] = "high"
    with pytest.raises(ConfigError, match=r"^roles\.main\.clip: expected float | none, got 'high'"):
        decode(data)
    linear = encode(Linear(start=1.0, end=0.0))
    del linear["end"]
    with pytest.raises(ConfigError, match=r"Linear needs 'end' \(float\)"):
        decode(linear)


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^anything: cannot write .*object"):
        encode(Tree(anything=object()))
    with pytest.raises(ConfigError, match=r"^shape: .*lambda"):
        encode(Tree(shape=lambda value: value))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("learner.batch_size", "16", 16),
        ("learner.num_slots", "1e6", 1_000_000),
        ("learner.num_slots", "1_000_000", 1_000_000),
        ("learner.num_slots", 1e3, 1000),
        ("learner.num_slots", "9007199254740993", 9007199254740993),
        ("learner.clip", "0.5", 0.5),
        ("learner.clip", "none", None),
        ("learner.clip", None, None),
        ("learner.shuffle", "false", False),
        ("learner.shuffle", True, True),
        ("learner.device", "cuda", "cuda"),
        ("learner.hidden", "128,128", (128, 128)),
        ("learner.hidden", "[128, 128]", (128, 128)),
        ("learner.hidden", [1, 2, 3], (1, 2, 3)),
        ("learner.hidden", "", ()),
        ("learner.hidden.1", "7", 7),
        ("learner.learning_rate", "3e-4", 3e-4),
        ("learner.learning_rate", "{type: Linear, start: 1e-3, end: 0}", Linear(start=1e-3, end=0)),
        ("learner.learning_rate", {"$type": "Exponential", "start": 1, "end": 0.1}, Exponential(start=1, end=0.1)),
        ("learner.learning_rate", Linear(start=1, end=0), Linear(start=1, end=0)),
        (
            "learner.learning_rate",
            {"type": "ludus.data.schedules:Linear", "start": 1, "end": 0},
            Linear(start=1, end=0),
        ),
        ("matchmaker", "Uniform", Uniform()),
        ("matchmaker", f"{HERE}:Uniform", Uniform()),
        ("matchmaker", {"type": "Prioritised", "power": "3"}, Prioritised(power=3)),
        ("matchmaker.power", 1, 1),
        ("roles.main.clip", "2", 2.0),
        ("roles.+exploiter", {"batch_size": 8}, Learner(batch_size=8)),
        ("pair.0.batch_size", "8", 8),
        ("pair.1", "1", 1.0),
        ("teacher", "Learner", Learner()),
        ("teacher.batch_size", "8", 8),
        ("side", "SECOND", Side.SECOND),
        ("shape", f"{HERE}:double", double),
        ("kind", f"{HERE}:Uniform", Uniform),
        ("run", "runs/b", Path("runs/b")),
        ("name", "none", "none"),
        ("name", "12", "12"),
        ("anything", "[1, x]", [1, "x"]),
        ("counts", "{1: 2}", {1: 2}),
        ("counts.+3", "0.5", 0.5),
        ("hooks", f"{HERE}:double", (double,)),
        ("branches.0.1.power", "3", 3.0),
        ("branches.1.1", "Prioritised", Prioritised()),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(path: str, value: Any, expected: Any) -> None:
    changed = override(Tree(), path, value)
    result: Any = changed
    for step in path.replace("+", "").split("."):
        if isinstance(result, Mapping):
            result = {str(key): item for key, item in result.items()}[step]
        else:
            result = result[int(step)] if isinstance(result, tuple) else getattr(result, step)
    assert result == expected
    assert type(result) is type(expected)
    assert through_json(changed) == changed


def test_a_star_stands_for_every_key_of_a_mapping() -> None:
    two = override(Tree(), "roles.+exploiter", {"batch_size": 8})
    changed = apply_overrides(two, {"roles.*.batch_size": 16, "roles.*.clip": "2", "roles.main.clip": "3"})
    assert {name: (role.batch_size, role.clip) for name, role in changed.roles.items()} == {
        "main": (16, 3.0),
        "exploiter": (16, 2.0),
    }
    with pytest.raises(ConfigError, match=r"roles\.main\.batch_size: expected int, got 'many'"):
        override(two, "roles.*.batch_size", "many")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("learner.batchsize", 1,
         "unknown path 'learner.batchsize': did you mean 'learner.batch_size'? learner has batch_size, num_"),
        ("lerner.clip", 1, "did you mean 'learner.clip'? the top level has name, learner"),
        ("num_slots", 1, "unknown path 'num_slots': did you mean"),
        ("roles.man.clip", 1, "did you mean 'roles.main.clip'? roles has main; to add one: roles.+man"),
        ("learner.hidden.2", 1, "learner.hidden has 0, 1"),
        ("computed", 1, "unknown path 'computed'"),
        ("learner.batch_size", "many", "learner.batch_size: expected int, got 'many'"),
        ("learner.batch_size", "1.5", "learner.batch_size: expected int, got '1.5'"),
        ("learner.batch_size", "nan", "learner.batch_size: expected int, got 'nan'"),
        ("learner.batch_size", True, "learner.batch_size: expected int, got True"),
        ("learner.shuffle", "1", "learner.shuffle: expected bool, got '1'"),
        ("learner.device", "tpu", "learner.device: expected 'cpu' | 'cuda', got 'tpu'"),
        ("learner.hidden", "1,x", "learner.hidden: expected tuple[int, ...], got '1,x'"),
        ("learner.batch_size", 65, "learner.batch_size: num_slots 64 must be at least batch_size 65"),
        ("roles.main.batch_size", 65, "roles.main.batch_size: num_slots 64 must be at least"),
        ("learner.learning_rate", "Linaer",
         "float | Linear | Exponential | Warmup, got 'Linaer' (unknown class 'Linaer'; did you mean 'Linear'?)"),
        ("learner.learning_rate", {"start": 1, "end": 0},
         "say which class it is: type: Linear or type: Exponential"),
        ("learner.learning_rate", {"type": "Linear", "stat": 1},
         "learner.learning_rate: unknown field 'stat': did you mean 'start'? Linear has start, end"),
        ("learner.learning_rate", "Linear", "learner.learning_rate: Linear needs 'start' (float)"),
        ("matchmaker", "Unifrom", "did you mean 'Uniform'?"),
        ("matchmaker", "HalfAMatchmaker",
         "expected Matchmaker, got 'HalfAMatchmaker', but HalfAMatchmaker is none"),
        ("matchmaker", "nowhere:Uniform", "matchmaker: no module 'nowhere'"),
        ("side", "THIRD", "side: expected FIRST | SECOND, got 'THIRD'"),
        ("hooks", f"{HERE}:HERE", f"hooks: expected tuple[Hook, ...], got '{HERE}:HERE'"),
        ("name", 12, "name: expected str, got 12"),
        ("name.x", 12, "name: expected str"),
        ("learner", None, "learner: expected Learner, got None"),
    ],
)  # fmt: skip
def test_a_wrong_override_names_the_path_and_the_nearest_right_one(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(Tree(), path, value)
    assert message in str(caught.value)


class HasArrays(Protocol):
    def arrays(self, name: str) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Owner:
    part: Linear | HasArrays


def test_a_class_is_found_in_the_other_files_of_the_folder() -> None:
    changed = override(Owner(part=Linear(start=1, end=0)), "part", {"type": "Vector", "size": "3"})
    assert changed.part == Vector(size=3)


def test_changes_are_validated_together_and_later_ones_hold() -> None:
    tree = apply_overrides(Tree(), {"learner.batch_size": "128", "learner.num_slots": "128"})
    assert (tree.learner.batch_size, tree.learner.num_slots) == (128, 128)
    tree = apply_overrides(Tree(), {"learner": {"clip": 1.0, "device": "cuda"}, "learner.clip": 2.0})
    assert tree.learner == Learner(clip=2.0, device="cuda")
    tree = apply_overrides(Tree(), {"matchmaker": "Prioritised", "matchmaker.power": "5"})
    assert tree.matchmaker == Prioritised(power=5.0)
    with pytest.raises(ConfigError, match=r"^learner\.batch_size, learner\.num_slots: num_slots 1"):
        apply_overrides(Tree(), {"learner.batch_size": 2, "learner.num_slots": 1})


def test_a_mapping_changes_only_what_it_names_unless_it_names_a_type() -> None:
    tree = Tree(learner=Learner(clip=1.0))
    assert apply_overrides(tree, {"learner": {"device": "cuda"}}).learner == Learner(clip=1.0, device="cuda")
    assert override(tree, "learner", "{device: cuda}").learner == Learner(clip=1.0, device="cuda")
    fresh = apply_overrides(tree, {"learner": {"type": "Learner", "device": "cuda"}})
    assert fresh.learner == Learner(device="cuda")
    assert apply_overrides(tree, {"learner": {}}) == tree
    assert apply_overrides(tree, {}) is tree


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "experiment.yaml"
    file.write_text(text)
    return file


def test_a_yaml_file_names_a_recipe_and_what_differs(tmp_path: Path) -> None:
    text = "recipe: connect_four\nlearner:\n  learning_rate: 3e-4\n  hidden: [8]\nroles.main.clip: 1\n"
    recipe, overrides = load_yaml(write(tmp_path, text))
    assert recipe == "connect_four"
    tree = apply_overrides(Tree(), overrides)
    assert tree.learner == Learner(learning_rate=3e-4, hidden=(8,))
    assert tree.roles["main"].clip == 1


def test_a_recipe_file_is_found_from_the_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    recipe, _ = load_yaml(write(tmp_path, "recipe: mine.py:experiment\n"))
    assert recipe == f"{tmp_path / 'mine.py'}:experiment"


LAUGHS = "recipe: x\na0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learner: {}\n", "names no recipe"),
        ("- recipe\n", "is a mapping"),
        ("recipe: [\n", "not valid YAML"),
        ("recipe: x\na: 1\na: 2\n", "line 3, column 1: not valid YAML: key 'a' is written twice"),
        ("recipe: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        (LAUGHS, "more than 10000 values"),
        ("recipe: x\na: &a [*a]\n", "more than 10000 values"),
        ("recipe: x\na: " + "[" * 20_000, "nested too deeply"),
        ("# " + "x" * MAX_BYTES, "bytes"),
    ],
    ids=["no-recipe", "list", "broken", "twice", "code", "laughs", "cycle", "deep", "long"],
)
def test_a_bad_yaml_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(tmp_path, text))
    assert message in str(caught.value)
    assert "experiment.yaml" in str(caught.value)


def test_a_missing_yaml_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_yaml(tmp_path / "nowhere.yaml")


def test_every_setting_is_listed_with_type_value_and_docstring() -> None:
    settings = {setting.path: setting for setting in paths(Tree())}
    batch_size = settings["learner.batch_size"]
    assert (batch_size.type_name, batch_size.value) == ("int", 32)
    assert batch_size.doc == "Trajectories in one update.\n\nMore of them make it steadier."
    assert settings["learner.learning_rate"].type_name == "float | Linear | Exponential | Warmup"
    assert settings["learner.device"].type_name == "'cpu' | 'cuda'"
    assert settings["teacher"].type_name == "Learner | none"
    assert settings["learner.num_slots"].doc == ""
    assert {"roles.main.clip", "pair.0.clip", "matchmaker.power"} <= set(settings)
    assert "computed" not in settings


def test_every_listed_path_can_be_overridden_with_its_own_value() -> None:
    tree = Tree()
    for setting in paths(tree):
        assert override(tree, setting.path, setting.value) == tree


def test_differences_are_named_by_path() -> None:
    a = Tree()
    b = replace(
        a,
        learner=replace(a.learner, batch_size=16, hidden=(1,)),
        roles={"main": Learner(), "exploiter": Learner()},
        matchmaker=Uniform(),
    )
    assert diff(a, b) == [
        ("learner.batch_size", 32, 16),
        ("learner.hidden", (64, 64), (1,)),
        ("matchmaker", Prioritised(), Uniform()),
        ("roles.exploiter", MISSING, Learner()),
    ]
    assert diff(Learner(clip=math.nan), Learner(clip=math.nan)) == []
    assert diff(Learner(clip=1.0), Learner(clip=True)) == [("clip", 1.0, True)]

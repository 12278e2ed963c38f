"""The public names: every door loads what it lists, without PyTorch where that is promised, and files on disk
use the same names."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ludus
import ludus.algorithms
import ludus.games
import ludus.league
import ludus.models
import ludus.recipes
from ludus.config import decode, encode
from ludus.data.addresses import load_address
from ludus.public_names import DOORS, FRONT, find_public, load_public, public_name

ROOT = Path(__file__).parents[1]
PACKAGES: dict[str, ModuleType] = {
    "": ludus,
    "games": ludus.games,
    "league": ludus.league,
    "models": ludus.models,
    "algorithms": ludus.algorithms,
}
NAMES = [(door, name) for door, package in PACKAGES.items() for name in package.__all__]
LIBRARIES = {"LoopbackCluster": "ray", "GameClient": "grpc", "Atari": "ale_py", "Pgx": "pgx"}
"""Names that need a library which is not installed everywhere."""
WRAPPED = {"load_experiment"}
"""Names whose public meaning takes more than the private one."""


@pytest.mark.parametrize(("door", "name"), NAMES)
def test_a_public_name_loads(door: str, name: str) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    assert getattr(PACKAGES[door], name) is not None
    assert name in dir(PACKAGES[door])
    assert f"\n{name} " in (PACKAGES[door].__doc__ or "")


def test_the_front_door_is_short_enough_to_read() -> None:
    assert 60 <= len(ludus.__all__) <= 105


def test_a_name_means_one_thing() -> None:
    for names in (*FRONT.values(), *DOORS.values()):
        for name, one in names.items():
            assert find_public(name) == one, name


@pytest.mark.parametrize("door", PACKAGES)
def test_type_checkers_see_the_same_names(door: str) -> None:
    file = PACKAGES[door].__file__
    assert file is not None
    body = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module != "ludus"]
    imported = [alias.asname or alias.name for node in imports for alias in node.names]
    assert sorted(imported) == PACKAGES[door].__all__, "a line that is no `from MODULE import NAME  # what it is`"
    (exported,) = [node for node in body if isinstance(node, ast.Assign)]
    assert sorted(set(ast.literal_eval(exported.value)) - set(DOORS)) == PACKAGES[door].__all__


@pytest.mark.parametrize(("package", "wrong"), [(ludus, "Experimnt"), (ludus.league, "PSFP")])
def test_an_unknown_name_offers_the_nearest(package: ModuleType, wrong: str) -> None:
    with pytest.raises(AttributeError, match=f"{wrong}'; did you mean"):
        getattr(package, wrong)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_side_doors_open_from_the_front_door() -> None:
    code = "import ludus; ludus.games.ConnectFour, ludus.league.PFSP, ludus.models.Policy, ludus.algorithms.PPO"
    run_python(code)
    assert {"games", "league", "models", "algorithms"} <= set(dir(ludus))


def test_importing_ludus_loads_nothing_heavy() -> None:
    code = "import sys, ludus; print(*{'torch', 'scipy', 'ray', 'rich', 'numpy'} & set(sys.modules))"
    assert run_python(code).strip() == ""


def test_help_shows_the_whole_door_without_torch() -> None:
    shown = run_python("import sys; sys.modules['torch'] = None; import ludus; help(ludus)")
    for names in FRONT.values():
        for name, one in names.items():
            assert re.search(rf"^ *{name} +{re.escape(one.about)}$", shown, re.MULTILINE), name


@pytest.mark.parametrize("name", ["Run", "Game", "LeagueRules", "PFSP", "Lifted", "UserService"])
def test_what_needs_no_torch_works_without(name: str) -> None:
    run_python(f"import sys; sys.modules['torch'] = None; import ludus; ludus.{name}")


def test_without_torch_the_error_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    from ludus import PPO\nexcept ImportError as error:\n    print(error)"
    )
    assert "torch" in run_python(code)


def test_the_version_is_that_of_the_distribution_or_of_the_source() -> None:
    assert ludus.__version__[0].isdigit()
    code = (
        "import importlib.metadata as metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = missing\nimport ludus; print(ludus.__version__)"
    )
    assert run_python(code).strip().endswith("+source")


# --- names on disk ---


def recipes() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(ludus.recipes.__path__))


@pytest.mark.parametrize("recipe", recipes())
def test_an_experiment_on_disk_names_no_module(recipe: str) -> None:
    try:
        experiment = importlib.import_module(f"ludus.recipes.{recipe}").experiment()
    except (ModuleNotFoundError, ludus.GameError):
        pytest.skip("a game library is missing")
    written = encode(experiment)
    assert not re.search(r'"ludus[\w.]*:', json.dumps(written))
    assert decode(written) == experiment


def test_every_name_on_disk_leads_back_to_its_class() -> None:
    for name in ("PPO", "PFSP", "ConnectFour", "Experiment", "Linear", "LogUniform", "UserService"):
        assert public_name(load_public(name)) == name
    assert public_name(test_an_unknown_name_offers_the_nearest) is None


# --- what our own texts import ---


def texts() -> Iterator[tuple[str, str]]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"```(?:python|py)[^\n]*\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            yield path.name, textwrap.dedent(block)
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")


def imported_names() -> set[tuple[str, str]]:
    found = set()
    for _, text in texts():
        for module, names in re.findall(r"^\s*from (ludus[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
            found |= {(module, name.partition(" as ")[0].strip()) for name in names.split(",")}
    return found


@pytest.mark.parametrize(("module", "name"), sorted(imported_names()))
def test_what_docs_and_examples_import_is_public(module: str, name: str) -> None:
    """By whatever path they import it: the object itself must be behind a door."""
    if module.startswith("ludus.recipes"):
        return
    if name in WRAPPED:
        return
    try:
        obj = load_address(f"{module}:{name}")
    except AttributeError:
        obj = importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is missing")
    named = [
        one
        for names in (*FRONT.values(), *DOORS.values())
        for public, one in names.items()
        if name in (public, one.address.rpartition(":")[2])
    ]
    assert any(load_address_or_module(one.address) is obj for one in named), f"{module}:{name}"


def load_address_or_module(address: str) -> object:
    module, _, name = address.partition(":")
    return load_address(address) if name else importlib.import_module(module)


def test_the_commands_need_no_extra() -> None:
    """Without the libraries of the extras (but PyTorch) every command can be loaded: what lacks its library says so."""
    program = textwrap.dedent(
        """
        import importlib, pkgutil, sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in sys.argv[1:]:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        import ludus.cli
        for command in pkgutil.iter_modules(ludus.cli.__path__):
            importlib.import_module(f"ludus.cli.{command.name}")
        """
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {re.split(r"[^\w-]", one)[0] for group in project["optional-dependencies"].values() for one in group}
    of_package = importlib.metadata.packages_distributions()
    missing = [name for name, homes in of_package.items() if extras - {"torch"} & set(homes)]
    assert {"grpc", "starlette", "ray", "PIL"} & set(missing)
    run = subprocess.run([sys.executable, "-c", program, *missing], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr

"""Who may import whom. A wrong import fails here with the rule that it breaks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ludus

ROOT = Path(ludus.__file__).parent

BUILDING_BLOCKS = {"data", "system", "games", "models", "league", "store", "services", "algorithms"}
PARTS = BUILDING_BLOCKS | {"config", "workers", "observe"}
FRONT_DOOR = ""
"""`from ludus import`: a recipe is written as a user writes an experiment."""
MAY_IMPORT: dict[str, set[str]] = {
    "data": set(),
    "system": {"data"},
    "public_names": set(),
    "config": {"data", "public_names"},
    "games": {"data", "system"},
    "models": {"data"},
    "league": {"data"},
    "store": {"data", "system"},
    "services": {"data", "system"},
    "algorithms": {"data", "models"},
    "workers": BUILDING_BLOCKS,
    "observe": {"data", "system", "games", "store", "config", "league", "workers", "public_names"},
    "experiment": PARTS,
    "defaults": PARTS | {"experiment"},
    "lookup": PARTS | {"experiment", "defaults", "recipes"},
    "runtime": PARTS | {"experiment", "defaults", "lookup"},
    "recipes": PARTS | {"experiment", FRONT_DOOR},
    "launch": {"data", "system", "config"},
    "replays": PARTS | {"experiment", "lookup", "runtime"},
    "evaluation": PARTS | {"experiment", "lookup", "runtime", "replays"},
    "export": PARTS | {"experiment", "runtime", "evaluation"},
    "agent": PARTS | {"experiment", "runtime", "export"},
    "run": PARTS | {"experiment", "runtime", "evaluation", "agent"},
    "training": PARTS | {"experiment", "lookup", "runtime", "replays", "evaluation", "run"},
    "study": PARTS | {"lookup", "runtime"},
    "cli": PARTS
    | {
        "experiment",
        "lookup",
        "runtime",
        "recipes",
        "launch",
        "replays",
        "evaluation",
        "export",
        "study",
        "agent",
        "run",
        "training",
    },
}
"""Every part may also import itself. `ludus/__init__.py` only names what is public."""

FENCED: dict[str, tuple[str, ...]] = {
    "torch": (
        "models/",
        "algorithms/",
        "workers/",
        "replays/",
        "games/device/",
        "evaluation/play/session.py",
        "runtime/imported_models.py",
    ),
    "ray": ("runtime/ray/",),
    "grpc": ("games/remote/",),
    "sqlite3": ("store/",),
    "redis": ("store/model_storage.py",),
    "tensorboardX": ("observe/",),
    "prometheus_client": ("observe/",),
    "wandb": ("observe/",),
    "PIL": ("observe/",),
    "starlette": ("observe/", "evaluation/play/server.py"),
    "uvicorn": ("observe/",),
    "matplotlib": ("observe/export.py",),
    "click": ("cli/",),
    "onnx": ("models/onnx_graph.py",),
    "onnxruntime": ("games/exported.py",),
    "optuna": ("league/population.py",),
    "gymnasium": ("games/adapters/gymnasium",),
    "pettingzoo": ("games/adapters/pettingzoo",),
    "ale_py": ("games/adapters/atari", "games/adapters/pettingzoo"),
    "pyspiel": ("games/adapters/openspiel",),
    "open_spiel": ("games/adapters/openspiel",),
    "pgx": ("games/adapters/pgx",),
    "jax": ("games/adapters/pgx",),
    "pysc2": ("games/adapters/pysc2",),
    "gfootball": ("games/adapters/football",),
    "jpype": ("games/adapters/microrts",),
    "slimevolleygym": ("games/adapters/slimevolley",),
    "pyftg": ("games/adapters/fightingice",),
    "hok": ("games/adapters/gamecore_bridge.py",),
}
"""Library -> how the paths of the only files begin that import it."""

DATA_LIBRARIES = {"numpy", "msgspec"}
NOT_PURE = {"time", "datetime", "os", "pathlib", "socket", "random", "subprocess", "threading", "multiprocessing"}
"""What a fold over the ledger must not look at: clock, disk, network, chance of its own."""

LAZY = {
    "agent.py",
    "lookup.py",
    "run.py",
    "study.py",
    "runtime/start.py",
    "evaluation/play/replays.py",
    "games/remote/source.py",
}
"""Files outside `cli/` that may import ours inside a function: they choose by name what to load, or load PyTorch, Ray
or gRPC only when it is needed."""

VAGUE_NAMES = {"utils", "util", "common", "misc", "base", "core", "types", "manager", "helpers", "legacy"}


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import statement; a relative one begins with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node.lineno


def imported_in_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(node)


def violations(source: str, file: str) -> list[str]:
    """What is wrong with the imports of `file`, a path below `src/ludus/`."""
    tree = ast.parse(source)
    part = file.split("/")[0].removesuffix(".py")
    found = []
    for module, line in imported(tree):
        library = module.split(".")[0]
        if module.startswith("."):
            found.append(f"{file}:{line}: relative import; write it from `ludus` on")
        elif library == "ludus":
            target = module.split(".")[1] if "." in module else ""
            if part != "__init__" and target != part and target not in MAY_IMPORT[part]:
                allowed = ", ".join(sorted(MAY_IMPORT[part])) or "nothing of ours"
                found.append(f"{file}:{line}: {part} imports {module}; it may import {allowed}")
        elif not file.startswith(FENCED.get(library, (file,))):
            found.append(f"{file}:{line}: {library} belongs in {' '.join(FENCED[library])} only")
        elif part == "data" and library not in DATA_LIBRARIES | sys.stdlib_module_names:
            found.append(f"{file}:{line}: data imports {library}; it needs {', '.join(sorted(DATA_LIBRARIES))}")
        elif part == "league" and library in NOT_PURE:
            found.append(f"{file}:{line}: the league is a pure fold and cannot import {library}")
    if part != "cli" and file not in LAZY:
        for module, line in imported_in_functions(tree):
            if module.split(".")[0] == "ludus":
                found.append(f"{file}:{line}: {module} imported inside a function; import it at the top")
    return found


DOORS = {f"{door}/__init__.py" for door in ("games", "league", "models", "algorithms")}
"""They only name what is public, as `ludus/__init__.py` does."""

FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_imports_follow_the_layers(file: str) -> None:
    if file in DOORS:
        return
    assert violations((ROOT / file).read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("league/payoff.py", "import torch", "torch belongs in"),
        ("league/payoff.py", "from ludus.store.ledger import Ledger", "it may import data"),
        ("league/payoff.py", "import time", "pure fold"),
        ("league/payoff.py", "def late():\n    from ludus.models import policy", "it may import data"),
        ("games/lift.py", "from ludus.models.policy import Policy", "it may import data"),
        ("games/builtin/kuhn.py", "import pyspiel", "pyspiel belongs in games/adapters/openspiel"),
        ("games/adapters/openspiel.py", "import gymnasium", "gymnasium belongs in games/adapters/gymnasium"),
        ("runtime/local.py", "import ray.util", "ray belongs in runtime/ray/"),
        ("system/process.py", "from ludus.workers.actor import Actor", "it may import data"),
        ("data/batch.py", "import ludus.config", "nothing of ours"),
        ("data/batch.py", "import scipy", "data imports scipy"),
        ("config/changes.py", "from ludus.experiment import Experiment", "it may import data"),
        ("observe/report.py", "from ludus.runtime.assemble import new_league", "it may import config, data, games"),
        ("experiment.py", "from ludus.runtime.assemble import assemble", "experiment imports ludus.runtime.assemble"),
        ("runtime/assemble.py", "from ludus.recipes import connect_four", "runtime imports ludus.recipes"),
        ("recipes/kuhn.py", "from ludus.cli import train", "recipes imports ludus.cli"),
        ("agent.py", "from ludus.run import Run", "agent imports ludus.run"),
        ("run.py", "from ludus.training import train", "run imports ludus.training"),
        ("recipes/kuhn.py", "import torch.nn", "torch belongs in"),
        ("store/ledger.py", "from ludus import Experiment", "store imports ludus"),
        ("store/ledger.py", "from . import files", "relative import"),
        ("workers/actor.py", "def late():\n    from ludus.store import ledger", "inside a function"),
        ("workers/actor.py", "import ludus.config", "workers imports ludus.config"),
    ],
)
def test_a_planted_fault_is_found(file: str, source: str, message: str) -> None:
    found = violations(source, file)
    assert len(found) >= 1
    assert any(message in fault for fault in found)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("algorithms/ppo.py", "import torch\nfrom ludus.models.policy import Policy"),
        ("cli/train.py", "def train():\n    from ludus.runtime.assemble import assemble"),
        ("games/adapters/gymnasium.py", "import gymnasium\nfrom ludus.games.game import Game"),
        ("runtime/ray/node_connection.py", "import ray"),
        ("__init__.py", "from ludus.experiment import Experiment"),
    ],
)
def test_what_the_rules_allow_passes(file: str, source: str) -> None:
    assert violations(source, file) == []


def test_files_are_named_for_what_they_hold() -> None:
    assert [file for file in FILES if Path(file).stem in VAGUE_NAMES] == []


def test_every_part_has_a_rule() -> None:
    parts = {file.split("/")[0].removesuffix(".py") for file in FILES} - {"__init__", "__main__"}
    assert parts <= set(MAY_IMPORT)

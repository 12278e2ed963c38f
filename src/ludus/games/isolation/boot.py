"""Starts the host of a game in whichever interpreter runs this file; that needs numpy and msgspec only.

Run as a file: `boot.py [FOLDER ...]`, the folders to import from (none: the interpreter's own). Ludus is imported from
the package of this file, so that both sides of the connection have the same version.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def main() -> None:
    package = Path(__file__).resolve().parents[2]
    sys.path[:] = sys.argv[1:] or sys.path[1:]  # not the folder of this file
    # The package alone: the folder around it may hold the libraries of another interpreter.
    search = [str(package)]
    spec = importlib.util.spec_from_file_location("ludus", package / "__init__.py", submodule_search_locations=search)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["ludus"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    importlib.import_module("ludus.games.isolation.host").main()


if __name__ == "__main__":
    main()

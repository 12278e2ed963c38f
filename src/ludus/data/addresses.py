"""Addresses of Python objects: `package.module:Name` or `path/to/file.py:Name`, to the object and back. A file is
loaded once per absolute path, so that loading a class twice gives the same class."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.data.checks import did_you_mean, nearest

FILE_ATTRIBUTE = "__ludus_file__"  # attribute of a module loaded from a file: its absolute path
_PREFIX = "ludus_file_"  # of the names of such modules
_STAMP_ATTRIBUTE = "__ludus_stamp__"  # time of the last change of that file when it was loaded

_loading = threading.local()


def files_being_loaded() -> tuple[str, ...]:
    """The files that `load_file` is executing in this thread, the outermost first."""
    return tuple(getattr(_loading, "files", ()))


def load_file(path: str | Path) -> ModuleType:
    """The module of a Python file. Its folder is appended to `sys.path`, so that it can import its neighbours."""
    file = Path(path).expanduser().resolve()
    main = sys.modules.get("__main__")
    if main is not None and _script_of(main) == str(file):
        return main
    name = f"{_PREFIX}{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"no Python file {str(path)!r}{_nearest_file(file)}")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    setattr(module, FILE_ATTRIBUTE, str(file))
    setattr(module, _STAMP_ATTRIBUTE, file.stat().st_mtime_ns)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[name] = module  # before execution: dataclasses look their own module up
    before = files_being_loaded()
    _loading.files = (*before, str(file))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _loading.files = before
    return module


def forget_changed_files() -> None:
    """Forget files that have changed since they were loaded. A notebook edits a file and trains again: without this,
    the notebook would keep the old classes while workers load the new ones."""
    for name in [name for name in sys.modules if name.startswith(_PREFIX)]:
        module = sys.modules[name]
        file = Path(getattr(module, FILE_ATTRIBUTE))
        if not file.is_file() or file.stat().st_mtime_ns != getattr(module, _STAMP_ATTRIBUTE):
            del sys.modules[name]


def load_address(address: str) -> Any:
    """The object at `path/to/file.py:Name` or `package.module:Name`; `Name` may have dots."""
    place, colon, name = address.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"{address!r} is not an address: write FILE.py:NAME or PACKAGE.MODULE:NAME")
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    target: Any = load_file(place) if is_file else _import(place, address)
    for step in name.split("."):
        if not hasattr(target, step):
            names = sorted(known for known in vars(target) if not known.startswith("_"))
            raise AttributeError(f"{place!r} has no {step!r}{did_you_mean(step, names)}")
        target = getattr(target, step)
    return target


def address_of(obj: Any) -> str:
    """The address of a class or function, from which `load_address` gives it in any process."""
    module_name = getattr(obj, "__module__", None)
    name = getattr(obj, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str):
        raise TypeError(f"{obj!r} has no address: only classes and functions have a name of their own")
    if "<" in name:
        raise ValueError(f"{module_name}:{name} has no address: move it to the top level of its file")
    module = sys.modules[module_name]
    place = getattr(module, FILE_ATTRIBUTE, None)
    if place is None and module_name == "__main__":
        place = _script_of(module)
        if place is None:
            raise ValueError(
                f"{name} has no address: it was written at a prompt; put it into a file (in a notebook: %%writefile)"
            )
    return f"{place or module_name}:{name}"


def _import(module: str, address: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing import inside a module that exists is that module's own error.
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise ModuleNotFoundError(
            f"no module {error.name!r} for {address!r}; for a file write PATH/TO/FILE.py:NAME", name=error.name
        ) from None


def _script_of(main: ModuleType) -> str | None:
    """The script that runs as `__main__`; None if it runs as part of a package (`python -m`)."""
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return None
    return str(Path(file).resolve())


def _nearest_file(file: Path) -> str:
    if not file.parent.is_dir():
        return f"; there is no folder {str(file.parent)!r}"
    close = nearest(file.name, (found.name for found in file.parent.glob("*.py")))
    return f"; did you mean {str(file.parent / close)!r}?" if close else ""

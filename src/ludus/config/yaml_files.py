"""YAML that a person wrote: read safely, within limits, without silent surprises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ludus.config.errors import ConfigError

MAX_BYTES = 256 * 1024
MAX_VALUES = 10_000
"""Counted with every alias written out: a short file can stand for a very large tree."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice, which plain YAML loaders let pass."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is written twice", key_node.start_mark
                )
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, what: str) -> Any:
    """The value of a YAML text; `what` names it in errors."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"{what}: more than {MAX_BYTES} bytes of YAML")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{what}{place}: not valid YAML: {getattr(error, 'problem', error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{what}: YAML nested too deeply") from error
    _require_small(value, what)
    return value


def load_yaml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """(recipe, overrides) of an experiment file: `recipe: NAME`, then what differs from it.

    Overrides are nested mappings or dotted paths. A recipe in a Python file is looked for from the
    folder of the YAML file.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: {size} bytes; an experiment file has at most {MAX_BYTES}")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8") from error
    content = read_yaml(text, str(path))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: an experiment file is a mapping: `recipe: NAME`, then overrides by path")
    recipe = content.pop("recipe", None)
    if not isinstance(recipe, str):
        raise ConfigError(f"{path}: names no recipe; begin with `recipe: connect_four` or FILE.py:NAME")
    place, colon, name = recipe.rpartition(":")
    if colon and place.endswith(".py") and (file.parent / place).is_file():
        recipe = f"{file.parent / place}:{name}"
    return recipe, content


def _require_small(value: Any, what: str) -> None:
    """Walks the tree as if every alias were a copy, and gives up at the limit: cycles end there too."""
    pending, count = [value], 0
    while pending:
        node = pending.pop()
        count += 1
        if count + len(pending) > MAX_VALUES:
            raise ConfigError(f"{what}: stands for more than {MAX_VALUES} values; write out fewer aliases")
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list | tuple | set):
            pending.extend(node)

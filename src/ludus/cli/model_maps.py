"""The file that says what our weights are called elsewhere: read, and a first one written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from ludus.cli.model_fit import Fit
from ludus.cli.model_sources import Source
from ludus.config.errors import ConfigError
from ludus.config.yaml_files import read_yaml
from ludus.store.files import atomic_write
from ludus.store.weight_map import BadWeightMap, Taken, WeightMap, parse_map


def read_map(path: str | None) -> WeightMap:
    if path is None:
        return WeightMap()
    try:
        return parse_map(read_yaml(Path(path).read_text(encoding="utf-8"), path), path)
    except (BadWeightMap, UnicodeDecodeError) as error:
        raise ConfigError(str(error)) from error


def write_first_map(path: Path, source: Source, fit: Fit) -> int:
    """Write what matches, and a guess for what does not; says how many lines are guessed."""
    if path.exists():
        raise ConfigError(f"{path} is there already; name another file, or remove it")
    guessed = fit.live.guesses
    lines = [
        f"# Our weights: what they are called in {source.label}.",
        "# Lines with GUESS are by shape and likeness of names alone: look at each, then remove the word.",
        "# A * stands for any text, on both sides (trunk.*: actor.*); without KIND/ a line is for all kinds.",
        *([f"place: {_quoted(source.place)}"] if source.place else []),
        "weights:",
        *_lines(source, fit, guessed),
    ]
    left_over = [name for name in fit.live.left_over if name not in {one.name for one in guessed.values()}]
    lines += [f"# left over in the file: {name} {source.weights[name].shape}" for name in left_over]
    atomic_write(path, ("\n".join(lines) + "\n").encode())
    return len(guessed)


def _lines(source: Source, fit: Fit, guessed: Mapping[str, Taken]) -> Iterator[str]:
    for ours, array in fit.asked.items():
        if ours in fit.live.sources:
            yield f"  {_quoted(ours)}: {_quoted(fit.live.sources[ours])}  # {array.shape}"
        elif ours in guessed and not guessed[ours].transpose:
            yield f"  {_quoted(ours)}: {_quoted(guessed[ours].name)}  # {array.shape} GUESS"
        elif ours in guessed:
            taken = f"{{from: {_quoted(guessed[ours].name)}, transpose: true}}"
            yield f"  {_quoted(ours)}: {taken}  # {array.shape} GUESS"
        else:
            yield f"  # {_quoted(ours)}:  # {array.shape}, nothing of this shape is left in the file"


def _quoted(text: str) -> str:
    """As YAML writes it: in quotes where it has to be."""
    return str(yaml.safe_dump(text, width=10_000)).removesuffix("...\n").strip()

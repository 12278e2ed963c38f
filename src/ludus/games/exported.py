"""Exported agents: files that `ludus export` wrote, run by onnxruntime alone. This module needs neither PyTorch nor the
rest of Ludus; `docs/take-an-agent-out.md` describes the arrays of a file.

A player has one file for each kind of seat. Every file holds the manifest of all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data.specs import ArraySpec, GameSpec, SeatKind, array_spec, differences, spec_from_json
from ludus.data.trees import Array, Tree, allocate
from ludus.games.seat_rows import GameError

SUFFIX = ".onnx"
MANIFEST_KEY = "ludus"
"""The name of the manifest among the metadata of a file."""
FORMAT = 1
UNIFORMS = "uniforms"
GREEDY = -1.0
"""A uniform number that takes the most probable option."""
MOST_IN_ROW = 2**24
"""Numbers of one array of one row. A manifest may claim any."""
_MOST_FOLDED_BYTES = 2**26
"""Of one constant that onnxruntime computes when it loads a file. A few bytes can describe gigabytes."""
_STRANGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of a manifest that nobody has exported."""


class ExportedFileError(GameError):
    """A file that is not an exported agent, or cannot be run."""


class ExportedPolicy:
    """The policy of one kind of seat. Rows in, actions and memory out."""

    def __init__(self, session: Any, facts: Mapping[str, Any], kind: SeatKind) -> None:
        """`session`: of onnxruntime; `facts`: of the policy, from the manifest."""
        self.kind = kind
        self._session = session
        self._inputs = [str(array["name"]) for array in facts["inputs"]]
        self._outputs = [str(array["name"]) for array in facts["outputs"]]
        for told, real in ((self._inputs, session.get_inputs()), (self._outputs, session.get_outputs())):
            if strange := {*told} ^ {one.name for one in real}:
                raise ValueError(f"the network and the manifest do not agree about {min(strange)!r}")
        self.num_draws = len(facts["draws"])
        """Uniform numbers that one row needs."""
        self.state_arrays: dict[str, ArraySpec] = {
            array["name"].removeprefix("memory."): array_spec(tuple(array["shape"]), "float32")
            for array in facts["inputs"]
            if array["name"].startswith("memory.")
        }

    def require_small_rows(self) -> None:
        """Raises ValueError if what the manifest describes would take the memory of this machine."""
        kind = self.kind
        for arrays in (kind.observation.arrays, kind.legal_arrays, kind.action.arrays, self.state_arrays):
            for name, one in arrays.items():
                if math.prod(one.shape) > MOST_IN_ROW:
                    raise ValueError(f"{name!r} has {list(one.shape)} numbers in one row, at most {MOST_IN_ROW:,} fit")

    def run(
        self,
        observation: Mapping[str, Array],
        legal: Mapping[str, Array],
        state: Mapping[str, Array],
        uniforms: Array,
        *,
        wanted: Iterable[str] | None = None,
    ) -> Tree:
        """The outputs of the file by name, all of them or those that are `wanted`."""
        names = self._outputs if wanted is None else list(wanted)
        feeds = self.feeds(observation, legal, state, uniforms)
        try:
            found = self._session.run(names, feeds)
        except Exception as error:  # onnxruntime has a class of its own for each kind of failure
            raise ExportedFileError(f"an exported agent failed to decide: {error}") from error
        return dict(zip(names, found, strict=True))

    def feeds(
        self, observation: Mapping[str, Array], legal: Mapping[str, Array], state: Mapping[str, Array], uniforms: Array
    ) -> Tree:
        """The inputs of the file by name."""
        groups = {"observation": observation, "legal": legal, "memory": state}
        feeds = {UNIFORMS: np.ascontiguousarray(uniforms, np.float32)}
        for full in self._inputs:
            group, _, name = full.partition(".")
            if group != UNIFORMS:
                feeds[full] = np.ascontiguousarray(groups[group][name], np.float32)
        return feeds

    def act(self, observation: Tree, legal: Tree, state: Tree, uniforms: Array) -> tuple[Tree, Tree]:
        """Actions by head, and the memory after them."""
        heads = list(self.kind.action.heads)
        wanted = [*(f"action.{head}" for head in heads), *(f"next_memory.{name}" for name in self.state_arrays)]
        found = self.run(observation, legal, state, uniforms, wanted=wanted)
        return (
            {head: found[f"action.{head}"] for head in heads},
            {name: found[f"next_memory.{name}"] for name in self.state_arrays},
        )


class ExportedPlayer:
    """A player from a file: its policies by kind of seat, and the facts of its manifest."""

    def __init__(self, path: str | PathLike[str], *, greedy: bool = False) -> None:
        self.path = Path(fspath(path))
        session = open_session(self.path)
        self.manifest = read_manifest(session, self.path)
        self.greedy = greedy
        try:
            self.player: str = self.manifest["player"]
            self.weights: str | None = self.manifest["weights"]
            self.model: str = self.manifest["model"]
            self.spec: GameSpec = spec_from_json(self.manifest["game"])
            # A player whose seats do not share a policy has a kind of seat for each policy.
            self.played: GameSpec = spec_from_json(self.manifest["played"])
            described = self.manifest["policies"]
            # A single file may have been renamed; several find each other by their names.
            sessions = (
                [session]
                if len(described) == 1
                else [open_session(self.path.parent / Path(one["file"]).name) for one in described]
            )
            self.policies = tuple(
                ExportedPolicy(*one) for one in zip(sessions, described, self.played.kinds, strict=True)
            )
            for policy in self.policies:
                policy.require_small_rows()
        except _STRANGE as error:
            raise ExportedFileError(f"{self.path}: its manifest does not read: {error!r}") from error

    def state_arrays(self, kind: int) -> Mapping[str, ArraySpec]:
        return self.policies[kind].state_arrays

    def decide(
        self, kind: int, seats: object, seen: Tree, masks: Tree, state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        """Actions by head, and the memory after them, for rows of one kind of `played`."""
        policy = self.policies[kind]
        shape = (len(next(iter(seen.values()))), policy.num_draws)
        uniforms = np.full(shape, GREEDY, np.float32) if self.greedy else rng.random(shape, np.float32)
        return policy.act(seen, masks, state, uniforms)

    def initial_state(self, kind: int, rows: int) -> Tree:
        return allocate(self.state_arrays(kind), (rows,))

    def require_fit(self, spec: GameSpec) -> None:
        """Raise unless the seats of a game see and do what the player was trained for."""
        if len(spec.seats) != len(self.spec.seats):
            raise ExportedFileError(
                f"{self.path} plays {self.spec.name} with {len(self.spec.seats)} seats, {spec.name} has "
                f"{len(spec.seats)}"
            )
        for seat, (theirs, ours) in enumerate(zip(spec.seats, self.played.seats, strict=True)):
            found = differences(self.played.kinds[ours], spec.kinds[theirs])
            for name, (here, there) in found.items():
                if not name.startswith(("critic", "common", "rewards")):
                    raise ExportedFileError(
                        f"{self.path} plays {self.spec.name} and does not fit seat {seat} of {spec.name}: {name} is "
                        f"{here} in the file and {there} in the game"
                    )


def is_exported(path: object) -> bool:
    """Whether a path names an exported agent."""
    return isinstance(path, str | PathLike) and fspath(path).endswith(SUFFIX)


def read_manifest(session: Any, path: Path) -> dict[str, Any]:
    """The manifest in the metadata of a file."""
    found = session.get_modelmeta().custom_metadata_map.get(MANIFEST_KEY)
    if found is None:
        raise ExportedFileError(f"{path} is ONNX, but not of `ludus export`: it has no manifest")
    try:
        manifest: dict[str, Any] = dict(json.loads(found))
    except _STRANGE as error:
        raise ExportedFileError(f"{path}: its manifest does not read: {error!r}") from error
    if manifest.get("format") != FORMAT:
        raise ExportedFileError(
            f"{path} has format {manifest.get('format')!r}, and this version of Ludus reads format {FORMAT}"
        )
    return manifest


def open_session(path: Path) -> Any:
    """A session of onnxruntime for a file, with one thread: the networks are small."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ExportedFileError(f"{path} needs onnxruntime: pip install onnxruntime") from error
    if not path.is_file():
        raise ExportedFileError(f"there is no file {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_MOST_FOLDED_BYTES))
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each kind of damage
        raise ExportedFileError(f"{path} cannot be run by onnxruntime: {error}") from error

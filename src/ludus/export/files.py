"""`ludus export`: the files of a player. AGENT.onnx for each kind of seat, AGENT.json with the manifest, and README.md,
the model card. Every file is checked against the player before it is written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ludus.config import ConfigError
from ludus.data.specs import SeatKind, spec_to_json
from ludus.export.card import MARK, write_card
from ludus.export.parity import TOLERANCE, Parity, check_parity
from ludus.export.player import ExportFailed, LoadedPlayer, PlayerFacts, choose_snapshots, load_player, player_facts
from ludus.games.exported import FORMAT, GREEDY, MANIFEST_KEY, SUFFIX, ExportedPolicy, open_session
from ludus.models.onnx_graph import OPSET, ExportError, GraphArray, PolicyGraph, onnx_bytes
from ludus.store.files import atomic_write
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder
from ludus.system.machine import install_command, installed_version

CARD = "README.md"
AGENT = "agent"
LADDER = "ladder.json"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files of one player."""

    files: tuple[Path, ...]
    """One for each kind of seat."""
    manifest_file: Path
    card: Path | None
    manifest: Mapping[str, Any]
    parity: Parity
    facts: PlayerFacts


def export_player(
    folder: RunFolder,
    player: str,
    to: Path,
    *,
    weights: Variant = "average",
    logits: bool = False,
    value: bool = False,
    card: bool = True,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write a player of a run as ONNX. `to`: a file that ends in `.onnx`, or a folder. `tolerance`: the largest
    difference of an output in one decision."""
    for library in ("onnx", "onnxruntime"):
        if find_spec(library) is None:
            raise ConfigError(f"{library!r} is not installed; {install_command('export')} adds it")
    first = to if to.suffix == SUFFIX else to / f"{AGENT}{SUFFIX}"
    if card:
        _require_own_card(first.parent / CARD)
    loaded = load_player(folder, player, weights)
    facts = player_facts(folder, loaded.name, loaded.model)
    kinds = loaded.experiment.grouped_game.spec.kinds
    files = [
        first if len(kinds) == 1 else first.with_name(f"{first.stem}-{_plain(kind.name)}{SUFFIX}") for kind in kinds
    ]
    try:
        graphs = [PolicyGraph(policy, value=value, logits=logits) for policy in loaded.policies]
        manifest = _manifest(folder, loaded, facts, files, graphs)
        contents = [onnx_bytes(graph, {MANIFEST_KEY: json.dumps(manifest)}) for graph in graphs]
    except ExportError as error:
        raise ExportFailed(f"{player}: {error}") from error
    parity = _checked(contents, manifest, graphs, kinds, loaded, tolerance)
    first.parent.mkdir(parents=True, exist_ok=True)
    for file, content in zip(files, contents, strict=True):
        atomic_write(file, content)
    manifest = {
        **manifest,
        "policies": [
            {**one, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for one, content in zip(manifest["policies"], contents, strict=True)
        ],
        "parity": parity.to_dict(),
    }
    manifest_file = first.with_suffix(".json")
    atomic_write(manifest_file, (json.dumps(manifest, indent=2) + "\n").encode())
    card_file = first.parent / CARD if card else None
    if card_file is not None:
        write_card(card_file, facts, manifest, loaded.experiment)
    return Exported(
        files=tuple(files), manifest_file=manifest_file, card=card_file, manifest=manifest, parity=parity, facts=facts
    )


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Difficulty levels that were written, weakest first."""

    levels: tuple[Exported, ...]
    file: Path
    document: Mapping[str, Any]


def export_ladder(
    folder: RunFolder,
    player: str,
    to: Path,
    *,
    levels: int,
    logits: bool = False,
    value: bool = False,
    tolerance: float = TOLERANCE,
    tell: Callable[[Exported], None] = lambda level: None,
) -> Ladder:
    """Write snapshots of a learning player into the folder `to`. The model card is that of the strongest level."""
    chosen = choose_snapshots(folder, player, levels)
    written = []
    for number, snapshot in enumerate(chosen, start=1):
        file, strongest = to / f"level-{number}{SUFFIX}", number == len(chosen)
        how: dict[str, Any] = {"logits": logits, "value": value, "tolerance": tolerance}
        written.append(export_player(folder, snapshot, file, card=strongest, **how))
        tell(written[-1])
    document = {
        "game": written[0].manifest["game"]["name"],
        "player": player,
        "levels": [
            {
                "level": number,
                "files": [file.name for file in level.files],
                "player": level.facts.id,
                "decisions": level.facts.decisions,
                "rating": level.facts.rating,
                "score": None if level.facts.score is None else level.facts.score[0],
            }
            for number, level in enumerate(written, start=1)
        ],
    }
    path = to / LADDER
    atomic_write(path, (json.dumps(document, indent=2) + "\n").encode())
    return Ladder(levels=tuple(written), file=path, document=document)


def _checked(
    contents: Sequence[bytes],
    manifest: Mapping[str, Any],
    graphs: Sequence[PolicyGraph],
    kinds: Sequence[SeatKind],
    loaded: LoadedPlayer,
    tolerance: float,
) -> Parity:
    """Run the files aside, before they get their names."""
    with TemporaryDirectory() as aside:
        policies = []
        for number, (content, facts, kind) in enumerate(zip(contents, manifest["policies"], kinds, strict=True)):
            path = Path(aside) / f"{number}{SUFFIX}"
            path.write_bytes(content)
            policies.append(ExportedPolicy(open_session(path), facts, kind))
        parity = check_parity(graphs, policies, loaded.experiment.grouped_game)
    parity.tolerance = tolerance
    parity.require_equal(loaded.name)
    return parity


def _manifest(
    folder: RunFolder, loaded: LoadedPlayer, facts: PlayerFacts, files: Sequence[Path], graphs: Sequence[PolicyGraph]
) -> dict[str, Any]:
    """What a file says of itself; the digests of the files are only in the manifest beside them."""
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "ludus": installed_version(),
            **{name: version(name) for name in ("torch", "onnx", "onnxruntime")},
        },
        "opset": OPSET,
        "run": folder.path.resolve().name,
        "player": loaded.name,
        "model": loaded.model,
        "weights": loaded.weights,
        "weights_sha256": loaded.digest,
        "rating": facts.rating,
        "game": spec_to_json(loaded.experiment.game.spec),
        "played": spec_to_json(loaded.experiment.grouped_game.spec),
        "greedy_uniform": GREEDY,
        "policies": [
            {
                "kind": graph.policy.kind.name,
                "file": file.name,
                "inputs": [_described(array) for array in graph.layout.inputs],
                "outputs": [_described(array) for array in graph.layout.outputs],
                "draws": list(graph.layout.draws),
            }
            for file, graph in zip(files, graphs, strict=True)
        ],
    }


def _described(array: GraphArray) -> dict[str, Any]:
    return {"name": array.name, "dtype": array.dtype, "shape": list(array.shape)}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "-", name)


def _require_own_card(card: Path) -> None:
    """Refuse to overwrite a README that is not a model card of ours."""
    if card.exists() and MARK not in card.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{card} is there already, and is no model card: export into a folder of its own")

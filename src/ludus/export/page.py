"""Agents as plain numbers. `ludus export --to agent.json` writes the networks of an agent, for a program that evaluates
them itself. `ludus export --page` writes one HTML file on which people play agents. The file holds the rules, the
networks and a small evaluator in JavaScript; it needs no server and loads nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data.specs import Choice, Planes, SeatKind, Vector
from ludus.data.trees import Array
from ludus.evaluation import play
from ludus.evaluation.play.views import has_own_view
from ludus.experiment import Experiment
from ludus.export.player import ExportFailed, LoadedPlayer, PlayerFacts, load_player, player_facts
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.exported import SUFFIX as ONNX
from ludus.games.recording import innermost
from ludus.models.encoders import Encoder
from ludus.models.heads import ActionHeads, ChoiceHead
from ludus.models.memory import Memory
from ludus.models.network_policy import NetworkPolicy
from ludus.models.operators import ACTIVATIONS
from ludus.models.policy import Policy, weights_of
from ludus.observe import web
from ludus.observe.report import one_file_page
from ludus.store.files import atomic_write
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder

STATIC = Path(__file__).parent / "static"
SHARED = (Path(play.__file__).parent / "static", Path(web.__file__).parent / "static")
AGENTS = "agents"
NETWORK_FORMAT = 1
RULES: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    ConnectFour: lambda game: {"game": "connect_four", "threats": game.threats, "all_threats": game.all_threats},
    TicTacToe: lambda game: {"game": "tic_tac_toe"},
    Kuhn: lambda game: {"game": "kuhn"},
    Leduc: lambda game: {"game": "leduc"},
}
"""Games for two seats whose rules `game_rules.js` has -> what it needs to know."""


def export_page(folder: RunFolder, players: Sequence[str], path: Path, *, weights: Variant = "average") -> Path:
    """Write the page of one player, or of several difficulty levels, weakest first."""
    loaded = [load_player(folder, player, weights) for player in players]
    rules = page_rules(loaded[0].experiment)
    agents = [_agent(one, player_facts(folder, one.name, one.model)) for one in loaded]
    page = one_file_page(STATIC / "agent_page.html", [STATIC, *SHARED], {AGENTS: {"rules": rules, "agents": agents}})
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, page.encode())
    return path


def export_network(folder: RunFolder, player: str, path: Path, *, weights: Variant = "average") -> Path:
    """Write the networks of a player as JSON; docs/take-an-agent-out.md has the format."""
    if path.with_suffix(ONNX).exists():
        raise ExportFailed(f"{path} is the manifest of {path.with_suffix(ONNX).name}: choose another name with --to")
    loaded = load_player(folder, player, weights)
    agent = _agent(loaded, player_facts(folder, loaded.name, loaded.model))
    document = {"format": NETWORK_FORMAT, "game": loaded.experiment.game.spec.name, **agent}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, (json.dumps(document) + "\n").encode())
    return path


def page_rules(experiment: Experiment) -> dict[str, Any]:
    """What the page needs to know of the game. Raises `ExportFailed` for a game that it cannot play."""
    game = innermost(experiment.game)
    known = ", ".join(kind.__name__ for kind in RULES)
    if type(game) not in RULES or game.spec.num_seats != 2:
        why = "has no board page" if not has_own_view(experiment.game) else "has rules that the page does not know"
        raise ExportFailed(f"{experiment.game.spec.name} {why}; --page plays {known} with two seats")
    if experiment.grouped_game.spec.kinds[0].observation != game.spec.kinds[0].observation:
        raise ExportFailed(f"{experiment.game.spec.name} shows its players more than the rules say: --page cannot")
    return RULES[type(game)](game)


def _agent(loaded: LoadedPlayer, facts: PlayerFacts) -> dict[str, Any]:
    return {
        "name": facts.id,
        "model": loaded.model,
        "weights": loaded.weights,
        "decisions": facts.decisions,
        "rating": facts.rating,
        "networks": [page_network(policy) for policy in loaded.policies],
        "network_of_seat": list(loaded.experiment.grouped_game.spec.seats),
    }


def page_network(policy: Policy) -> dict[str, Any]:
    """A network as `evaluator.js` reads it. Raises `ExportFailed` with what the evaluator does not compute."""
    network = _plain_network(policy)
    weights, arrays = weights_of(network), _Arrays()
    activation = next(name for name, function in ACTIVATIONS.items() if function is network.trunk.activation)

    def linear(name: str) -> dict[str, Any]:
        bias = weights.get(f"{name}.bias")
        return {"weight": arrays.put(weights[f"{name}.weight"]), "bias": None if bias is None else arrays.put(bias)}

    encoder: Any = network.encoder
    planes: Any = dict(zip(encoder.plane_names, enumerate(encoder.planes), strict=True))
    parts = []
    for name in (*encoder.vectors, *encoder.plane_names):  # in the order of the features
        part = network.kind.observation.parts[name]
        (shape,) = ([*array.shape] for array in part.arrays(name).values())
        described: dict[str, Any] = {"name": name, "shape": shape, "scale": 255 if part.dtype == "uint8" else 1}
        if isinstance(part, Planes):
            number, tower = planes[name]
            described["convolutions"] = [
                {**linear(f"encoder.planes.{number}.layers.{layer}"), "stride": convolution.stride}
                for layer, convolution in enumerate(tower.layers)
            ]
        parts.append(described)
    memory: dict[str, Any] | None = None
    if network.memory is not None:
        memory = {
            "inputs": linear("memory.lstm.inputs"),
            "recurrent": linear("memory.lstm.recurrent"),
            "size": network.memory.size,
        }
    return {
        "activation": activation,
        "parts": parts,
        "trunk": [linear(f"trunk.layers.{layer}") for layer in range(len(network.trunk.layers))],
        "memory": memory,
        "head": {"name": next(iter(network.kind.action.heads)), **linear("heads.heads.0.scores")},
        "values": arrays.encoded(),
    }


class _Arrays:
    """Float32 numbers one after the other."""

    def __init__(self) -> None:
        self._values: list[Array] = []
        self._size = 0

    def put(self, array: Array) -> dict[str, Any]:
        """Where the array begins, and its shape."""
        start = self._size
        self._values.append(np.ascontiguousarray(array, "<f4").ravel())
        self._size += array.size
        return {"start": start, "shape": list(array.shape)}

    def encoded(self) -> str:
        return base64.b64encode(np.concatenate(self._values).tobytes()).decode()


def _plain_network(policy: Policy) -> NetworkPolicy:
    why = None
    if not isinstance(policy, NetworkPolicy):
        why = f"a {type(policy).__name__}"
    elif type(policy.encoder) is not Encoder or policy.encoder.entity_names:
        why = f"a network with {type(policy.encoder).__name__} over entities or maps"
    elif policy.memory is not None and not _is_plain_memory(policy.memory):
        why = "a memory of several layers or with layer norm"
    elif type(policy.heads) is not ActionHeads or not _is_one_choice(policy.heads, policy.kind):
        why = "several heads, or one that is no choice among options"
    if why is not None or not isinstance(policy, NetworkPolicy):
        raise ExportFailed(
            "--page and --to FILE.json take `ActorCritic` networks over vectors and planes with one choice, and this "
            f"is {why}; export ONNX with --to FILE.onnx"
        )
    return policy


def _is_plain_memory(memory: Memory) -> bool:
    return not len(memory.above) and memory.lstm.cell_norm is None


def _is_one_choice(heads: ActionHeads, kind: SeatKind) -> bool:
    choices = [head for head in kind.action.heads.values() if isinstance(head, Choice)]
    parts = kind.observation.parts.values()
    return (
        len(choices) == len(kind.action.heads) == 1
        and isinstance(heads.heads[0], ChoiceHead)
        and all(isinstance(part, Vector | Planes) for part in parts)
    )

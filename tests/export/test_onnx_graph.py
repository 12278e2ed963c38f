"""Every built-in network as ONNX decides as it does in PyTorch, and a network that cannot become ONNX is told why."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ludus.data.specs import (
    ActionSpec,
    ArraySpec,
    Box,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.sumo import Sumo
from ludus.games.game import GameSource
from ludus.models.alphastar import AlphaStar
from ludus.models.alphastar_encoder import Scatter
from ludus.models.fully_conv import FullyConv
from ludus.models.module_policy import ModulePolicy
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import ModelConfig, Policy

onnx = pytest.importorskip("onnx", reason="pip install -e '.[export]' adds onnx")
pytest.importorskip("onnxruntime", reason="pip install -e '.[export]' adds onnxruntime")

from ludus.export.parity import BATCH_SIZES, STEPS, STEPS_AFTER_RESET, TOLERANCE, Parity, ParityError, check_parity  # noqa: E402
from ludus.games.exported import ExportedPolicy, open_session  # noqa: E402
from ludus.models.onnx_graph import OPSET, ExportError, PolicyGraph, onnx_bytes  # noqa: E402

RICH = SeatKind(
    name="rich",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=4),
            "bytes": Vector(size=3, dtype="uint8"),
            "units": Entities(maximum=7, features=5, types=6, categories=(4,)),
            "crowd": Entities(maximum=5, features=4, types=3, categories=(2,), dtype="uint8"),
            "screen": Planes(channels=2, height=17, width=18, dtype="uint8"),
            "minimap": Planes(channels=3, height=8, width=8),
        }
    ),
    action=ActionSpec(
        heads={
            "type": Choice(num=6),
            "delay": Choice(num=3, masked=False),
            "group": Pointer(into="units", picks=3, when=When(head="type", values=(1, 2, 3))),
            "target": Pointer(into="units", when=When(head="type", values=(1,))),
            "near": Point(height=17, width=18, when=When(head="type", values=(2,)), masked=True),
            "far": Point(height=32, width=32, when=When(head="type", values=(3,))),
            "push": Box(size=2, low=(-1.0, 10.0), high=(0.5, 30.0), when=When(head="type", values=(1, 4))),
            "then": Choice(num=3),
        }
    ),
    rewards=("built",),
)
"""All parts and heads that there are: bytes, types, categories, pointers, points on maps, conditions."""
MANY = SeatKind(
    name="many",
    observation=ObservationSpec(parts={"scalars": Vector(size=4, dtype="int32")}),
    action=ActionSpec(
        heads={"type": Choice(num=40), "more": Choice(num=4, when=When(head="type", values=tuple(range(30))))}
    ),
)
"""A condition with more values than are compared one by one."""

UNITY = {
    "Abs", "Add", "And", "ArgMax", "Atan", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv",
    "ConvTranspose", "CumSum", "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Gather", "GatherElements",
    "Gemm", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max",
    "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax",
    "ReduceMean", "ReduceSum", "Relu", "Reshape", "ScatterElements", "Shape", "Sigmoid", "Slice", "Softmax", "Split",
    "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
"""Operators that Unity's inference engine lists as supported, of those that networks may need."""

SMALL = AlphaStar(
    scalar_size=8,
    entity_size=8,
    entity_hidden=8,
    scatter_channels=4,
    map_channels=4,
    down=(8, 8),
    spatial_size=8,
    hidden=(16,),
    memory=8,
    action_size=16,
    head_hidden=8,
    key_size=8,
    embedding_size=16,
    up=(4,),
    value_size=16,
)

NETWORKS: dict[str, tuple[ModelConfig, GameSource | SeatKind]] = {
    "mlp": (ActorCritic(hidden=(16, 16)), ConnectFour()),
    "gelu": (ActorCritic(hidden=(16,), activation="gelu", separate_critic=False), ConnectFour()),
    "silu": (ActorCritic(hidden=(16,), activation="silu", value_normalisation=True), ConnectFour()),
    "elu": (ActorCritic(hidden=(16,), activation="elu"), ConnectFour()),
    "lstm": (ActorCritic(hidden=(16,), memory=8), ConnectFour()),
    "planes": (ActorCritic(hidden=(16,), channels=(4, 4)), Beacon(decisions=20)),
    "residual blocks": (ActorCritic(hidden=(16,), channels=(4,), residual_blocks=2), Beacon(decisions=20)),
    "entities": (ActorCritic(hidden=(16,), channels=(4,), entity_size=8, memory=8), RICH),
    "squashed numbers": (ActorCritic(hidden=(16,), channels=(4,), entity_size=8, box_distribution="squashed"), RICH),
    "beta numbers": (ActorCritic(hidden=(16,), channels=(4,), entity_size=8, box_distribution="beta"), RICH),
    "sumo": (ActorCritic(hidden=(16,)), Sumo()),
    "many values": (ActorCritic(hidden=(8,)), MANY),
    "fully conv": (FullyConv(channels=(4, 4), hidden=(16,)), Beacon(decisions=20)),
    "fully conv, stride": (FullyConv(channels=(4, 4), stride=4, hidden=(16,), memory=8), RICH),
    "alphastar": (replace(SMALL, separate_critic=True, bounded_value=True), RICH),
    "alphastar, scatter": (
        replace(
            SMALL,
            scatter=(Scatter(entities="units", onto="minimap", x=1, y=2, scale=2.0),),
            memory_layers=2,
            actions=(0, 1, 2, 4),
            entity_types=(0, 2, 3),
            temperatures={"type": 0.5, "group": 2.0},
        ),
        RICH,
    ),
}


def exported(policy: Policy, folder: Path, **options: bool) -> tuple[PolicyGraph, ExportedPolicy, Any]:
    """The graph of a policy, its file, and the file as onnx reads it."""
    graph = PolicyGraph(policy, **options)
    content = onnx_bytes(graph, {"ludus": json.dumps({})})
    path = folder / "agent.onnx"
    path.write_bytes(content)
    facts = {
        "inputs": [{"name": one.name, "shape": one.shape} for one in graph.layout.inputs],
        "outputs": [{"name": one.name} for one in graph.layout.outputs],
        "draws": graph.layout.draws,
    }
    return graph, ExportedPolicy(open_session(path), facts, policy.kind), onnx.load_from_string(content)


@pytest.mark.parametrize("name", NETWORKS)
def test_built_in_networks_decide_alike(name: str, tmp_path: Path) -> None:
    model, where = NETWORKS[name]
    kind, game = (where, None) if isinstance(where, SeatKind) else (where.spec.kinds[0], where)
    policy = model.build(kind, seed=3)
    graph, file, read = exported(policy, tmp_path, value=True, logits=True)

    found = check_parity([graph], [file], game)
    found.require_equal(name)

    outputs = {one.name for one in read.graph.output}
    if all(isinstance(head, Box) for head in kind.action.heads.values()):
        outputs.remove("log_prob")  # that of real numbers is not compared
    assert set(found.largest) == outputs
    assert outputs >= {f"action.{head}" for head in kind.action.heads} | {"value"}
    assert {node.op_type for node in read.graph.node} <= UNITY
    assert [one.version for one in read.opset_import] == [OPSET]
    for one in (*read.graph.input, *read.graph.output):
        sizes = [dimension.dim_param or dimension.dim_value for dimension in one.type.tensor_type.shape.dim]
        assert sizes[0] == "rows"
        assert all(isinstance(size, int) and size > 0 for size in sizes[1:]), (one.name, sizes)
    kinds = {one.name: one.type.tensor_type.elem_type for one in (*read.graph.input, *read.graph.output)}
    heads = kind.action.heads
    choices = {f"action.{head}" for head, spec in heads.items() if not isinstance(spec, Box)}
    assert kinds == {name: onnx.TensorProto.INT32 if name in choices else onnx.TensorProto.FLOAT for name in kinds}


@pytest.mark.slow
@pytest.mark.ci
def test_alphastar_in_its_mini_size_on_skirmish(tmp_path: Path, record_property: Callable[[str, str], None]) -> None:
    game = Skirmish()
    policy = AlphaStar.mini().build(game.spec.kinds[0], seed=0)
    graph, file, _ = exported(policy, tmp_path)
    found = check_parity([graph], [file], game)
    found.require_equal("skirmish")
    assert found.rows > 5_000
    drift = max(found.drift.values())
    record_property("told", f"{found.rows} decisions, largest difference {found.worst:.1e}, drift {drift:.1e}")


def test_seats_of_several_kinds_with_memory(tmp_path: Path) -> None:
    game = Siege()
    graphs, files = [], []
    for number, kind in enumerate(game.spec.kinds):
        folder = tmp_path / str(number)
        folder.mkdir()
        graph, file, _ = exported(ActorCritic(hidden=(8,), memory=8).build(kind, seed=number), folder)
        graphs.append(graph)
        files.append(file)
    check_parity(graphs, files, game).require_equal("siege")


def test_sampling_follows_the_probabilities(tmp_path: Path) -> None:
    kind = ConnectFour().spec.kinds[0]
    policy = ActorCritic(hidden=(8,)).build(kind, seed=0)
    with torch.no_grad():
        policy.heads.heads[0].scores.weight.mul_(100.0)  # far from uniform
    _, file, _ = exported(policy, tmp_path, logits=True)
    rows = 20_000
    seen = {name: np.ones((rows, *spec.shape), np.float32) for name, spec in kind.observation.arrays.items()}
    legal = {"move": np.tile(np.array([1, 1, 0, 1, 1, 1, 1], bool), (rows, 1))}
    uniforms = np.random.default_rng(0).random((rows, 1), np.float32)
    uniforms[:2] = [[0.0], [1.0 - 2.0**-24]]  # the ends take legal options too
    found = file.run(seen, legal, {}, uniforms)
    logits = found["logits.move"][0].astype(np.float64)
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    assert expected[2] == 0.0
    drawn = np.bincount(found["action.move"], minlength=7) / rows
    assert np.abs(drawn - expected).max() < 4.0 * np.sqrt(0.25 / rows)
    assert drawn[2] == 0.0
    greedy = file.run(seen, legal, {}, np.full((rows, 1), -1.0))["action.move"]
    assert set(greedy.tolist()) == {int(expected.argmax())}


def test_a_file_with_other_weights_is_refused_with_its_output(tmp_path: Path) -> None:
    kind = ConnectFour().spec.kinds[0]
    policy = ActorCritic(hidden=(8,)).build(kind, seed=0)
    graph, file, _ = exported(policy, tmp_path, value=True)
    with torch.no_grad():
        policy.critic.value.bias.add_(0.01)
    found = check_parity([graph], [file], ConnectFour())
    with pytest.raises(ParityError, match=r"output 'value' differs by 0\.01"):
        found.require_equal("agent")


def test_another_action_is_a_difference_unless_it_is_a_tie(tmp_path: Path) -> None:
    kind = ConnectFour().spec.kinds[0]
    policy = ActorCritic(hidden=(8,)).build(kind, seed=0)
    graph, file, _ = exported(policy, tmp_path)
    with torch.no_grad():
        policy.heads.heads[0].scores.weight.neg_()
    found = check_parity([graph], [file], None)
    assert found.largest["action.move"] == 1.0
    with torch.no_grad():  # every option is as probable as any other, and each side may take another one
        policy.heads.heads[0].scores.weight.zero_()
        policy.heads.heads[0].scores.bias.copy_(torch.arange(7) * 1e-7)
    graph, file, _ = exported(policy, tmp_path)
    with torch.no_grad():
        policy.heads.heads[0].scores.bias.neg_()
    found = check_parity([graph], [file], None)
    found.require_equal("agent")
    assert found.ties > 0


def test_memory_is_carried_and_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that ignores its memory is found out."""
    kind = ConnectFour().spec.kinds[0]
    policy = ActorCritic(hidden=(8,), memory=4).build(kind, seed=0)
    graph, file, _ = exported(policy, tmp_path)
    run = file.run

    def forgetful(observation: Any, legal: Any, state: Any, uniforms: Any, **more: Any) -> Any:
        return run(observation, legal, {name: array * 0 for name, array in state.items()}, uniforms, **more)

    monkeypatch.setattr(file, "run", forgetful)
    found = check_parity([graph], [file], None)
    with pytest.raises(ParityError, match="agent does not decide as the player does"):
        found.require_equal("agent")
    assert found.largest["next_memory.h"] > TOLERANCE
    assert found.rows == 2 * (STEPS + STEPS_AFTER_RESET) * sum(BATCH_SIZES)


def test_a_memory_that_drifts_is_refused() -> None:
    """Each decision is right, but errors add up."""
    found = Parity(largest={"next_memory.h": 1e-7}, drift={"next_memory.h": 0.02})
    with pytest.raises(
        ParityError, match=r"agent does not remember as the player does: output 'next_memory\.h' differs by"
    ):
        found.require_equal("agent")


class Plain(nn.Module):
    """A user's network with a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(98, 6)
        self.out = nn.Linear(6, 8)

    def forward(
        self, observation: dict[str, Tensor], state: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        hidden = self.cell(torch.cat((observation["board"], observation["threats"]), -1), state["hidden"])
        out = self.out(hidden)
        return out[:, :7], out[:, 7], {"hidden": hidden}


class Choosy(nn.Module):
    """Its result depends on a value in Python, which a graph cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(84, 8)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out = self.out(observation["board"])
        if float(observation["board"].sum()) > 0.0:
            out = out * 2.0
        return out[:, :7], out[:, 7]


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(84, 8)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out = self.out(torch.linalg.svdvals(observation["board"].reshape(-1, 12, 7)).repeat(1, 12))
        return out[:, :7], out[:, 7]


def test_a_users_module_becomes_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    hidden = ArraySpec(shape=(6,), dtype=np.dtype("float32"))
    policy = ModulePolicy(ConnectFour().spec.kinds[0], Plain(), state_arrays={"hidden": hidden})
    graph, file, _ = exported(policy, tmp_path, value=True)
    found: Parity = check_parity([graph], [file], ConnectFour())
    found.require_equal("agent")
    assert "next_memory.hidden" in found.largest


def test_a_module_that_cannot_is_told_why(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = ConnectFour().spec.kinds[0]
    with pytest.raises(ExportError, match=r"test_onnx_graph\.Sorted does not become ONNX: .*svdvals"):
        onnx_bytes(PolicyGraph(ModulePolicy(kind, Sorted())), {})
    graph, file, _ = exported(ModulePolicy(kind, Choosy()), tmp_path)
    with pytest.raises(ParityError, match=r"must not depend on the values of tensors"):
        check_parity([graph], [file], ConnectFour()).require_equal("agent")

    class Own:
        """A policy that is no network of ours."""

    own: Any = Own()
    own.kind, own.state_arrays, own.num_draws = kind, {}, 1
    with pytest.raises(ExportError, match="Own is a Policy of your own"):
        PolicyGraph(own)


def test_a_value_that_needs_the_critics_parts_is_refused() -> None:
    seen = ObservationSpec(parts={"scalars": Vector(size=4)}, critic={"whole": Vector(size=3)})
    kind = replace(MANY, observation=seen)
    policy = ActorCritic(hidden=(8,), central_critic=True).build(kind, seed=0)
    with pytest.raises(ExportError, match=r"the value needs 'critic\.whole'"):
        PolicyGraph(policy, value=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert onnx_bytes(PolicyGraph(policy), {})

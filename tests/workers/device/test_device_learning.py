"""Learning on a device: the update of the engine is that of the learner on the same decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import engines
import numpy as np
import pytest
import torch
from engines import MODEL, SMALL_ALPHASTAR, new_engine, new_players
from functorch.compile import nop
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch

from ludus import PPO, ActorCritic, AlphaStarGradient, Linear, MagnetPolicyGradient
from ludus.algorithms import A2C, EarlyGame, Impala, Reference, Teacher
from ludus.algorithms.algorithm import Algorithm
from ludus.data.batch import Batch
from ludus.games import resolve
from ludus.games.device.tensor_game import tensor_game_of
from ludus.models.policy import ModelConfig
from ludus.workers.config import DeviceConfig
from ludus.workers.device.engine import Engine
from ludus.workers.device.played import Played

ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(gamma=0.9, lambda_=0.8, entropy=Linear(start=0.05, end=0.01), value_clip=0.2, dual_clip=3.0),
    "a2c": A2C(gamma=0.9, lambda_=0.8),
    "magnet": MagnetPolicyGradient(gamma=0.9, lambda_=0.8, magnet=Reference(copy_every=2), step_weight=0.5),
    "taught": PPO(
        gamma=0.9,
        lambda_=0.8,
        dual_clip=3.0,
        ratio="per_head",
        teacher=Teacher(weight=0.5, early=EarlyGame(part="scalars", least=0.99, strategy=None)),
    ),
    "alphastar": AlphaStarGradient(gamma=0.95, teacher=Teacher(weight=0.1)),
    "impala": Impala(gamma=0.9, lambda_=0.8, upgo_weight=0.5),
}
MODELS: dict[str, ModelConfig] = {
    "plain": MODEL,
    "memory": ActorCritic(hidden=(16,), memory=8),
    "entities": SMALL_ALPHASTAR,
    "all": replace(SMALL_ALPHASTAR, memory=8, memory_layers=2),
}


def memory_before(engine: Engine, played: Played, step: int, row: int) -> dict[str, torch.Tensor]:
    """The memory that a row had at the beginning of its piece."""
    layout = engine.layout
    piece = min(step // (layout.steps // layout.pieces), layout.pieces - 1)
    return {name: tensor[piece, step % layout.phases, row].unsqueeze(0) for name, tensor in played.memory.items()}


def decisions_of(engine: Engine, played: Played, table: int, side: int) -> list[dict[str, Any]]:
    """What one side decided at a table, in order, with the reward up to its next decision; found step by step."""
    layout = engine.layout
    block, place = divmod(table, layout.tables)
    found: list[dict[str, Any]] = []
    open_decision: dict[str, Any] | None = None
    for step in range(layout.steps + 1):
        row = table if layout.in_turn else (block * layout.sides + side) * layout.tables + place
        half = place // (layout.tables // 2) if layout.in_turn else 0
        mine = not layout.in_turn or (step + half) % 2 == side
        if mine and played.acted[step, row]:
            if open_decision is not None:
                open_decision["next_value"] = True
            state = {name: tensor[step, table : table + 1] for name, tensor in played.state.items()}
            observation, legal = engine.rollout.observe(state, played.seat[step, row : row + 1])
            open_decision = {
                "observation": observation,
                "legal": legal,
                "action": {head: column[step, row : row + 1].long() for head, column in played.action.items()},
                "log_prob": played.log_prob[step, row].tolist(),
                "value": float(played.value[step, row]),
                "step": step,
                "first": played.first is not None and bool(played.first[step, row]),
                "memory": memory_before(engine, played, step, row),
                "reward": 0.0,
                "elapsed": 0.0,
                "over": False,
                "next_value": False,
            }
            found.append(open_decision)
            if step == layout.steps:
                open_decision["bootstrap"] = True
        if step < layout.steps and open_decision is not None:
            open_decision["reward"] += float(played.reward[step, table, side, 0])
            open_decision["elapsed"] += 1.0 if played.elapsed is None else float(played.elapsed[step, table])
            if played.over[step, table]:
                if played.truncated is not None and played.truncated[step, table]:
                    open_decision["bootstrap"] = True
                open_decision["over"], open_decision = True, None
    return found


_COLUMNS = ("log_prob", "value", "reward", "elapsed", "over", "valid", "follows")


def trajectory_of(decisions: list[dict[str, Any]], length: int, *, timed: bool) -> Batch:
    """A trajectory as the seat recorder would write it, without idle rows."""
    last = decisions[0]
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    rows = decisions + [last | {"valid": False}] * (length + 1 - len(decisions))
    for number, one in enumerate(rows):
        real = number < len(decisions) and "bootstrap" not in one
        valid = real and (one["over"] or one["next_value"])
        after = decisions[number + 1] if number + 1 < len(decisions) else {"bootstrap": True}
        trains_next = "bootstrap" not in after and (after["over"] or after["next_value"])
        columns["log_prob"].append(one["log_prob"])
        columns["elapsed"].append(one["elapsed"] if timed else 1.0)
        columns["value"].append(one["value"])
        columns["reward"].append(one["reward"])
        columns["over"].append(one["over"])
        columns["valid"].append(valid)
        columns["follows"].append(valid and not one["over"] and trains_next)
    tensors: dict[str, Any] = {name: torch.tensor(column).unsqueeze(1) for name, column in columns.items()}
    return Batch(
        observation={name: torch.stack([one["observation"][name] for one in rows]) for name in last["observation"]},
        legal={name: torch.stack([one["legal"][name] for one in rows]) for name in last["legal"]},
        action={name: torch.stack([one["action"][name] for one in rows]) for name in last["action"]},
        first=torch.tensor([[one["first"]] for one in rows]),
        state=decisions[0]["memory"],
        version=torch.zeros(len(rows), 1, dtype=torch.int64),
        **tensors,
    )


def joined(batches: list[Batch]) -> Batch:
    def cat(values: list[Any], axis: int) -> Any:
        if isinstance(values[0], dict):
            return {name: cat([value[name] for value in values], axis) for name in values[0]}
        return torch.cat(values, axis).numpy()

    names = ("observation", "legal", "action", "first", "version", *_COLUMNS)
    parts = {name: cat([getattr(batch, name) for batch in batches], 1) for name in names}
    return Batch(state=cat([batch.state for batch in batches], 0), **parts)


def pieces_of(engine: Engine, decisions: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The decisions of a stream as the sequences that the engine trains on: those of one piece, and the next one."""
    layout = engine.layout
    length = layout.turns // layout.pieces
    found = []
    for piece in range(layout.pieces):
        last = (piece + 1) * length * layout.phases
        first = last - length * layout.phases
        inside = [one for one in decisions if first <= one["step"] < last]
        after = [one for one in decisions if one["step"] >= last][:1]
        if inside:
            found.append(inside + [{"value": one["value"], "bootstrap": True, **one} for one in after])
    return found


@pytest.mark.parametrize(
    ("address", "algorithm", "model"),
    [
        ("kuhn", "a2c", "plain"),
        ("kuhn", "magnet", "plain"),
        ("leduc", "ppo", "plain"),
        ("goofspiel", "ppo", "plain"),
        ("goofspiel", "magnet", "plain"),
        ("leduc", "ppo", "memory"),
        ("goofspiel", "impala", "memory"),
        (f"{engines.__file__}:cut_goofspiel", "ppo", "plain"),
        (f"{engines.__file__}:slimevolley", "ppo", "plain"),
        (f"{engines.__file__}:cut_leduc", "a2c", "plain"),
        (f"{engines.__file__}:cut_leduc", "ppo", "memory"),
        (f"{engines.__file__}:cut_goofspiel", "impala", "memory"),
        (f"{engines.__file__}:cut_skirmish", "taught", "entities"),
        (f"{engines.__file__}:cut_skirmish", "alphastar", "all"),
        ("leduc", "impala", "plain"),
        ("skirmish", "taught", "entities"),
        ("skirmish", "alphastar", "all"),
    ],
)
def test_the_update_is_that_of_the_learner_on_the_same_decisions(address: str, algorithm: str, model: str) -> None:
    rules = ALGORITHMS[algorithm]
    engine = new_engine(
        address,
        learners=2,
        tables=8,
        matches=2,
        batch=96,
        minibatch=10**6,
        algorithm=rules,
        model=MODELS[model],
        unroll=4,
    )
    game = tensor_game_of(resolve(address))
    assert game is not None
    alone = new_players(game, 2, rules, engine.players[0].config, MODELS[model])
    layout, whole = engine.layout, engine.players[0].is_whole
    assert layout.pieces > 1 or not whole
    for one in (*engine.players, *alone):  # references that differ from the live weights
        for reference in one.references_of(0).values():
            for parameter in reference.parameters():
                parameter.data.mul_(1.5)
    for update in range(2):
        played = engine.rollout.play(engine.weights, engine.learning.views, None)
        assert played.truncated is None or played.truncated.any()
        engine.learning.progress.fill_(0.25)
        engine.learning.rates.fill_(1e-2)
        engine.learning.update(played, 1)
        engine.learning.follow()
        [statistics, *_] = engine.read()
        for number, player in enumerate(alone):
            own = range(number * layout.blocks * layout.tables, (number + 1) * layout.blocks * layout.tables)
            streams = [decisions_of(engine, played, table, side) for table in own for side in range(layout.sides)]
            length = layout.turns // layout.pieces if whole else layout.steps
            if whole:
                streams = [piece for one in streams for piece in pieces_of(engine, one)]
            acted = [one for one in streams if any("reward" in decision for decision in one)]
            batch = joined([trajectory_of(one, length, timed=game.spec.timed) for one in acted])
            measured = player.update({0: batch}, 0.25)
            assert player.decisions == engine.players[number].decisions
            if number == 0:
                shared = statistics.keys() & measured.keys()
                assert {"policy_loss", "value_loss", "explained_variance"} <= shared
                assert statistics["kl"] == pytest.approx(0.0, abs=1e-6)  # it acted as it remembers now
                for name in shared:
                    assert statistics[name] == pytest.approx(measured[name], abs=2e-4), (update, name)
            for name, array in player.weights().items():
                np.testing.assert_allclose(engine.players[number].weights()[name], array, atol=2e-4, err_msg=name)
            for name, array in player.average_weights().items():
                np.testing.assert_allclose(
                    engine.players[number].average_weights()[name], array, atol=2e-4, err_msg=name
                )


def watch_steps(engine: Engine) -> list[torch.Tensor]:
    """Filled with the decisions of each player in each gradient step from now on."""
    seen: list[torch.Tensor] = []
    inner = engine.learning._losses

    def watched(rows: Any, chunks: torch.Tensor, used: torch.Tensor, progress: Any) -> Any:
        seen.append((rows.columns["valid"][chunks] & used.unsqueeze(2)).sum((1, 2)))
        return inner(rows, chunks, used, progress)

    engine.learning._losses = watched
    return seen


def test_minibatches_train_on_every_decision_once_and_leave_out_sides_that_do_not() -> None:
    engine = new_engine("connect_four", learners=2, tables=32, matches=4, batch=256, minibatch=64, epochs=2)
    seen = watch_steps(engine)
    for block in (0, 1):  # the first player meets a frozen one at all of its tables
        engine.seat(block, [0, engine.row_of_opponent(block, 1)], [True, False], 4)
    engine.expect([2, 4])
    engine.iterate(0.0)
    engine.read()
    counted = torch.stack(seen).sum(0).tolist()
    assert counted == [2 * player.decisions for player in engine.players]
    assert 0.4 < engine.players[0].decisions / engine.players[1].decisions < 0.6
    full, half = (engine.learning.minibatches_for([sides, sides]) for sides in (4, 2))
    assert len(seen) == 2 * full
    assert half == full // 2


@pytest.mark.parametrize(("trained", "steps", "left_out"), [(16, 4, 0.0), (13, 3, 1 / 13), (15, 4, 0.0), (4, 1, 0.0)])
def test_no_gradient_step_is_mostly_padding(trained: int, steps: int, left_out: float) -> None:
    """A few decisions are left out at random instead, and counted as such."""
    engine = new_engine("connect_four", tables=128, matches=8, batch=1024, minibatch=256, epochs=2)
    seen = watch_steps(engine)
    for block in range(8):  # each has two sides
        trains = [2 * block < trained, 2 * block + 1 < trained]
        engine.seat(block, [0, engine.row_of_opponent(block, 1)], trains, 4)
    engine.expect([trained])
    engine.iterate(0.0)
    engine.read()
    [player] = engine.players
    assert len(seen) == 2 * steps
    assert sum(seen[:steps]) == player.decisions  # of the first epoch
    followed = 13 / 15  # the last two only show what comes next
    assert player.decisions / (player.decisions + player.unused) == pytest.approx(followed * (1 - left_out), abs=0.02)


def test_rows_of_seats_that_wait_for_the_clock_cost_no_gradient_steps() -> None:
    given: dict[str, Any] = {"tables": 16, "matches": 2, "batch": 512, "minibatch": 32, "model": SMALL_ALPHASTAR}
    engine = new_engine("skirmish", **given)
    seen = watch_steps(engine)
    [player] = engine.players
    rows = engine.layout.steps * engine.layout.num_rows
    for update in range(2):
        seen.clear()
        before = player.decisions
        engine.iterate(0.0)
        engine.read()
        assert sum(seen) == player.decisions - before
        assert 0.4 < sum(seen) / rows < 0.75
        wanted = rows / 32 if update == 0 else 1.25 * sum(seen) / 32 + 1
        assert len(seen) <= wanted
        assert min(seen[: sum(seen) // 32]) == 32  # without rows that are no decisions


def test_more_decisions_than_before_get_more_gradient_steps_although_some_are_left_out() -> None:
    """In a game whose seats wait for the clock, and now less than they did."""
    given: dict[str, Any] = {"tables": 16, "matches": 2, "batch": 512, "minibatch": 48, "model": SMALL_ALPHASTAR}
    engine = new_engine("skirmish", **given)
    engine.learning._share = 0.25  # of the rows, while six of ten are decisions
    [player] = engine.players
    for _ in range(6):
        before = player.decisions, player.unused
        engine.iterate(0.0)
        engine.read()
    trained, left_out = player.decisions - before[0], player.unused - before[1]
    assert left_out < 0.25 * trained


def test_a_player_whose_minibatch_is_empty_takes_no_step() -> None:
    engine = new_engine("connect_four", learners=2, tables=32, matches=2, batch=256, minibatch=64)
    engine.seat(0, [0, 1], [False, False], 4)
    engine.expect([0, 2])
    before = {name: array.copy() for name, array in engine.players[0].weights().items()}
    engine.iterate(0.0)
    engine.read()
    assert engine.players[0].decisions == 0
    assert engine.players[1].decisions > 100
    for name, array in engine.players[0].weights().items():
        np.testing.assert_array_equal(array, before[name])


def test_numbers_that_are_not_finite_change_only_the_player_that_has_them() -> None:
    engine = new_engine("kuhn", learners=2, batch=64)
    engine.iterate(0.0)
    engine.read()
    healthy = engine.players[1].weights()
    engine.weights[0].fill_(float("nan"))
    engine.iterate(0.0)
    statistics, others = engine.read()
    assert statistics["gradient_steps"] == 0
    assert engine.players[0].skipped > 0
    assert others["gradient_steps"] > 0
    changed = engine.players[1].weights()
    assert all(np.isfinite(array).all() for array in changed.values())
    assert any((changed[name] != array).any() for name, array in healthy.items())


def test_a_player_whose_policy_is_constant_is_told_from_one_that_is_not() -> None:
    """Its values still distinguish positions."""
    engine = new_engine("connect_four", learners=2, batch=256)
    engine.players[0].config = engine.players[1].config = replace(engine.players[0].config, learning_rate=0.0)
    engine.iterate(0.0)
    assert [one["constant_policy"] for one in engine.read()] == [0.0, 0.0]
    views = engine.learning.views(engine.weights[:2])
    [name] = [name for name in views if name.endswith("scores.weight")]
    views[name][0].zero_()
    engine.iterate(0.0)
    assert [one["constant_policy"] for one in engine.read()] == [1.0, 0.0]
    assert engine.learning.highest[0] > engine.learning.lowest[0]


def test_products_in_bfloat16_keep_float32_weights_and_learn_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    full = new_engine("kuhn", batch=256, tables=32, minibatch=10**6)
    half = new_engine("kuhn", batch=256, tables=32, minibatch=10**6, config=DeviceConfig(precision="bfloat16"))
    played = full.rollout.play(full.weights, full.learning.views, None)
    for engine in (full, half):
        engine.learning.rates.fill_(1e-3)
        engine.learning.update(played, 1)
    assert half.weights.dtype == torch.float32
    torch.testing.assert_close(full.weights, half.weights, atol=2.1e-3, rtol=0.0)  # Adam's first step is the rate
    assert (full.weights != half.weights).any()


def test_a_cpu_that_would_emulate_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    engines = [new_engine("kuhn", config=DeviceConfig(precision=one)) for one in ("float32", "bfloat16")]
    for engine in engines:
        engine.iterate(0.0)
    assert torch.equal(engines[0].weights, engines[1].weights)


def test_a_minibatch_in_parts_has_the_same_gradient() -> None:
    whole, parts = (new_engine("connect_four", learners=2, tables=32, batch=256, minibatch=128) for _ in range(2))
    parts.learning._split = 4
    for engine in (whole, parts):
        engine.iterate(0.0)
    assert parts.learning._chunks % 4 == 0
    torch.testing.assert_close(whole.weights, parts.weights, atol=2e-4, rtol=0.0)


def test_play_apart_from_learning_trains_the_same_in_memory_that_stays() -> None:
    """As a GPU trains on a game that cannot be recorded: only learning is a graph."""
    together, apart = (new_engine("kuhn", tables=32, batch=256) for _ in range(2))
    places = set()
    for _ in range(3):
        together.iterate(0.0)
        apart.learning.rates.fill_(1e-2)
        played = apart._in_place(apart._play())
        places.add(tuple(tensor.data_ptr() for tensor in played.tensors()))
        apart.learning.update(played, apart.learning.minibatches_for([2 * apart.layout.num_blocks]))
        apart.learning.follow()
    assert torch.equal(together.weights, apart.weights)
    assert len(places) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler
@pytest.mark.parametrize(
    ("address", "algorithm", "model"),
    [
        ("connect_four", "magnet", "plain"),
        ("kuhn", "magnet", "plain"),
        ("goofspiel", "magnet", "plain"),
        ("leduc", "ppo", "memory"),
        ("skirmish", "taught", "entities"),
        ("skirmish", "alphastar", "all"),
    ],
)
def test_steps_and_losses_compile_in_one_piece(
    address: str, algorithm: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU needs them: without a break that would wait for the device. Skirmish compiles the parts of a step apart,
    so what surrounds them breaks there."""

    def compiled(engine: Engine, function: Any) -> Any:
        whole = address != "skirmish" or function.__name__ != "_advance_step"
        return torch.compile(function, dynamic=False, fullgraph=whole, backend="aot_eager")

    given: dict[str, Any] = {"algorithm": ALGORITHMS[algorithm], "model": MODELS[model], "unroll": 2}
    given |= {"learners": 2, "tables": 4 if address == "skirmish" else 16, "batch": 64, "minibatch": 32}
    given["batch"] = 16 if address == "skirmish" else 64
    monkeypatch.setattr(Engine, "_compiled", compiled)
    engine = new_engine(address, **given)
    engine.iterate(0.0)
    monkeypatch.undo()
    torch._dynamo.reset()
    plain = new_engine(address, **given)
    plain.iterate(0.0)
    torch.testing.assert_close(engine.weights, plain.weights, atol=2e-4, rtol=0.0)


def test_a_part_whose_backward_pass_cannot_be_compiled_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, in the first iteration, and with a warning; the other parts stay compiled."""

    def refuse(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel for this")

    compilers = iter([aot_autograd(fw_compiler=nop), aot_autograd(fw_compiler=nop, bw_compiler=refuse)])
    to_compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, *, dynamic, options: to_compile(function, backend=next(compilers))
    )
    monkeypatch.setattr(functorch, "force_non_lazy_backward_lowering", False)
    engine = new_engine("tic_tac_toe")
    engine._compiles = True

    def squared(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.square().sum()

    def cubed(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.pow(3).sum()

    able, unable = engine._compiled(squared), engine._compiled(cubed)
    numbers = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        for function, expected in ((able, 2 * numbers), (unable, 3 * numbers**2)):
            [gradient] = torch.autograd.grad(function(numbers), numbers)
            torch.testing.assert_close(gradient, expected)
    [warning] = [record.getMessage() for record in caplog.records if "cannot be compiled" in record.message]
    assert warning.startswith("cubed cannot be compiled and runs as it is, which is slower: ")
    assert "no kernel for this" in warning


def test_what_cannot_be_compiled_for_other_groups_later_on_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the first frozen opponents come in a game whose play is no CUDA graph."""
    engine = new_engine("tic_tac_toe")
    engine._compiles = True

    def compiled(function: Any, **options: Any) -> Any:
        def call(number: int) -> int:
            if engine.rollout.alike:
                raise TorchDynamoException("no kernel for this")
            return 10 * function(number)

        return call

    def doubled(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(torch, "compile", compiled)
    part = engine._compiled(doubled)
    assert part(1) == 20
    engine.rollout.alike = True
    assert part(1) == 2


def test_a_kernel_that_fails_while_it_runs_ends_the_training_by_its_own_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the first iteration: what it changed before must not be changed twice."""
    engine = new_engine("tic_tac_toe")
    engine._compiles = True
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    weights = torch.zeros(2)

    def descend(step: float) -> None:
        weights.add_(step)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine._compiled(descend)(1.0)
    assert weights.tolist() == [1.0, 1.0]
    assert not [record for record in caplog.records if "cannot be compiled" in record.message]

"""Whether training several players in one backward pass pays: updates in turn against stacked ones, same run.

python benchmarks/stacked_training.py                    on the GPU if there is one
python benchmarks/stacked_training.py --device cpu --small --no-report
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from _report import parser, write

from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.data.specs import ActionSpec, Choice, ObservationSpec, Planes, SeatKind, Vector
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import Tree
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import find_device
from ludus.workers.config import LearnerConfig
from ludus.workers.stacked_training import update_stacked
from ludus.workers.trained_player import TrainedPlayer

PLAYERS = (1, 2, 4, 8, 16)
UNROLL = 16
EPOCHS = 2
ROUNDS = 3
BOARD = SeatKind(
    name="seat",
    observation=ObservationSpec(parts={"board": Vector(size=84)}),
    action=ActionSpec(heads={"column": Choice(num=7)}),
)
PLANES = replace(BOARD, observation=ObservationSpec(parts={"board": Planes(channels=2, height=6, width=7)}))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network of the size of connect four, and how much it learns from at once."""

    name: str
    model: ActorCritic
    kind: SeatKind = BOARD
    batch: int
    minibatch: int


SMALL, LARGE, CONV = (ActorCritic(hidden=sizes) for sizes in ((128, 128), (512, 512), (128,)))
CASES = (
    Case(name="2 x 128", model=SMALL, batch=4_096, minibatch=1_024),
    Case(name="2 x 128", model=SMALL, batch=16_384, minibatch=4_096),
    Case(name="2 x 512", model=LARGE, batch=16_384, minibatch=4_096),
    Case(name="convolutions 2 x 32, 128", model=CONV, kind=PLANES, batch=4_096, minibatch=1_024),
    Case(name="convolutions 2 x 32, 128", model=CONV, kind=PLANES, batch=16_384, minibatch=4_096),
    Case(
        name="convolutions 3 x 64, 128",
        model=replace(CONV, channels=(64, 64, 64)),
        kind=PLANES,
        batch=16_384,
        minibatch=4_096,
    ),
    Case(name="128, memory 128", model=replace(SMALL, hidden=(128,), memory=128), batch=4_096, minibatch=1_024),
)


def new_players(case: Case, count: int, device: str) -> list[TrainedPlayer]:
    config = LearnerConfig(
        batch_size=case.batch, minibatch_size=case.minibatch, epochs=EPOCHS, device=device, stacked="on"
    )
    return [
        TrainedPlayer(f"p{index}", (case.model.build(case.kind, index),), PPO(), config, seed=index)
        for index in range(count)
    ]


def played(case: Case, seed: int) -> dict[int, Batch]:
    """Full trajectories of decisions about random observations, somewhat more or less than a batch."""
    rng = np.random.default_rng(seed)
    policy = case.model.build(case.kind, seed)
    num = round(case.batch / UNROLL * rng.uniform(0.97, 1.03))
    layout = TrajectoryLayout(kind=case.kind, unroll_length=UNROLL, state=policy.state_arrays)
    pool = SlotPool(layout, num)
    rows = num * (UNROLL + 1)
    observation = {
        name: rng.random((rows, *spec.shape), np.float32) for name, spec in case.kind.observation.arrays.items()
    }
    legal = {name: np.ones((rows, *spec.shape), np.bool_) for name, spec in case.kind.legal_arrays.items()}
    uniforms = rng.random((rows, policy.num_draws), np.float32)
    acted = policy.act(observation, legal, policy.initial_state(rows), uniforms)
    filled: Tree = {
        **{f"observation.{name}": array for name, array in observation.items()},
        **{f"legal.{name}": array for name, array in legal.items()},
        **{f"action.{name}": array for name, array in acted.action.items()},
        "log_prob": acted.log_prob,
        "value": acted.value,
        "reward": rng.normal(size=rows),
        "elapsed": np.ones(rows),
        "decision": np.ones(rows),
    }
    for name, array in filled.items():
        pool.rows[name][...] = array.reshape(pool.rows[name].shape)
    pool.slots["length"][...] = UNROLL
    return {0: pool.stack(np.arange(num))}


def seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(case: Case, count: int, device: str) -> tuple[float, float]:
    """Seconds of one update of every player: in turn, and stacked; the best of some, by turns."""
    batches = [played(case, seed) for seed in range(count)]
    alone, stacked = new_players(case, count, device), new_players(case, count, device)

    def in_turn() -> None:
        for player, own in zip(alone, batches, strict=True):
            player.update(own, 0.0)

    def together() -> None:
        update_stacked(stacked, batches, 0.0)

    in_turn(), together()
    check(alone, stacked)
    times = [(seconds(in_turn, alone[0].device), seconds(together, alone[0].device)) for _ in range(ROUNDS)]
    return min(one for one, _ in times), min(other for _, other in times)


def check(alone: Sequence[TrainedPlayer], stacked: Sequence[TrainedPlayer]) -> None:
    for one, other in zip(alone, stacked, strict=True):
        weights = other.weights()
        for name, array in one.weights().items():
            if not np.allclose(array, weights[name], atol=2e-3):
                raise AssertionError(f"{one.player}: {name} is not what training in turn makes of it")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--small", action="store_true", help="the first case, up to four players")
    arguments.add_argument("--no-report", action="store_true", help="print the figures only")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    device = find_device(chosen.device)
    rows = []
    for case in CASES[:1] if chosen.small else CASES:
        for count in PLAYERS[:3] if chosen.small else PLAYERS:
            in_turn, stacked = measure(case, count, chosen.device)
            rows.append(
                (
                    case.name,
                    f"{case.batch:,} / {case.minibatch:,}",
                    str(count),
                    f"{count / in_turn:,.1f}",
                    f"{count / stacked:,.1f}",
                    f"{in_turn / stacked:.2f}",
                )
            )
            print(*rows[-1], sep=" | ", flush=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one core"
    columns = ("network", "batch / minibatch", "players", "in turn", "stacked", "ratio")
    heading = f"Updates/s of all players together (PPO, {EPOCHS} epochs, copy to the device included)"
    write(
        f"stacked-training-{device.type}",
        "Training in turn and stacked",
        [(heading, columns, rows)],
        facts={"device": name},
        keep=not (chosen.small or chosen.no_report),
    )


if __name__ == "__main__":
    main()

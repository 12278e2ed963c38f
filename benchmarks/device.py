"""Decisions of learning players per second in the device runtime, trained on, for self-play and for a league.

    python benchmarks/device.py                                   # on a GPU: about three minutes, half of it compiling
    python benchmarks/device.py --tables 16896 67584 270336 --modes compiled
    python benchmarks/device.py --games pgx:go_9x9 pgx:othello --tables 16896    # games in JAX, on the same GPU
    python benchmarks/device.py --games skirmish                  # AlphaStar's mini network, PPO, 4,224 tables
    python benchmarks/device.py --growth --modes graph --no-run   # by tables, frozen players and learning players
    python benchmarks/device.py --small                           # on a CPU, in seconds: shows that it runs
    python benchmarks/device.py --small --games skirmish --no-run # the same with a large network: a minute

Self-play is one player at all tables. The league has one main player and two exploiters, each with half of its matches
in self-play and half against frozen players, 33 in all. One update is 16 steps at all tables and one epoch of four
minibatches (PPO, network 128-128; skirmish: the network and the PPO of its recipe, without a teacher). `run` is a whole
training with controller, ledger, PFSP and snapshots.

The modes: `compiled` (torch.compile and one CUDA graph), `autotuned` (the same with `device.autotune`), `graph` (eager
operations in a CUDA graph), `eager`. Of a game of Pgx, which JAX plays, the graph has only the learning.

Two of these programs can compile side by side and measure one after the other: give both the same `--lock FILE`.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from _report import Table, parser, write

from ludus.algorithms.ppo import PPO
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.catalog import resolve
from ludus.games.device.tensor_game import tensor_game_of
from ludus.games.game import GameSource
from ludus.league.matchmaking import PFSP, Mixture, SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import EvaluationConfig, LeagueRules, Role
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import ModelConfig, find_device
from ludus.recipes import skirmish
from ludus.runtime.assemble import create_run
from ludus.runtime.device import device_training
from ludus.workers.actor import ActorConfig
from ludus.workers.config import DeviceConfig, LearnerConfig
from ludus.workers.device.engine import Engine
from ludus.workers.device.rollout import Layout
from ludus.workers.trained_player import TrainedPlayer
from ludus.workers.worker import StopTraining

STEPS, MINIBATCHES, LEARNERS = 16, 4, 3
KINDS = ("self-play", "league")
FROZEN = 33
"""Frozen players of the league: 11 for each learning player, which has as many matches in self-play."""
GROWTH = [(3, FROZEN, tables) for tables in (16_896, 67_584, 270_336, 1_081_344)]
GROWTH += [(1, frozen, 101_376) for frozen in (1, 8, 32, 128)]
GROWTH += [(learners, 4 * learners, 101_376) for learners in (1, 2, 4, 8)]
"""Learning players, frozen players and tables of `--growth`."""
MODEL = ActorCritic(hidden=(128, 128), activation="relu", separate_critic=False)


@dataclass(frozen=True)
class Benchmark:
    """A game, and what is trained on it."""

    source: GameSource
    model: ModelConfig = MODEL
    algorithm: PPO = field(default_factory=PPO)
    tables: int = 101_376
    small: int = 264
    """Tables of `--small`."""


_SKIRMISH = skirmish.experiment()
assert isinstance(_SKIRMISH.algorithm, PPO)
GAMES = {
    "connect_four": Benchmark(ConnectFour(threats=False)),
    "kuhn": Benchmark(Kuhn()),
    "leduc": Benchmark(Leduc()),
    "goofspiel": Benchmark(Goofspiel()),
    "skirmish": Benchmark(
        _SKIRMISH.game, _SKIRMISH.model, replace(_SKIRMISH.algorithm, teacher=None), tables=4_224, small=132
    ),
}


@dataclass(frozen=True)
class Setting:
    game: str
    league: bool
    tables: int
    mode: str
    device: str
    precision: str
    league_of: tuple[int, int] = (LEARNERS, FROZEN)
    """Learning and frozen players of the league."""

    @property
    def learners(self) -> int:
        return self.league_of[0] if self.league else 1

    @property
    def matches(self) -> int:
        return 2 * self.league_of[1] if self.league else 2

    @property
    def learner(self) -> LearnerConfig:
        batch = STEPS * self.tables // self.learners
        return LearnerConfig(
            batch_size=batch,
            minibatch_size=max(1, batch // MINIBATCHES),
            buffer_size=batch,
            epochs=1,
            device=self.device,
        )

    @property
    def config(self) -> DeviceConfig:
        precision: Any = self.precision
        compiles = self.mode in ("compiled", "autotuned")
        return DeviceConfig(
            precision=precision, compile=compiles, autotune=self.mode == "autotuned", graph=self.mode != "eager"
        )


def benchmark_of(game: str) -> Benchmark:
    return GAMES[game] if game in GAMES else Benchmark(resolve(game))


def game_name(given: str) -> str:
    if given in GAMES or given.startswith("pgx:"):
        return given
    raise argparse.ArgumentTypeError(f"{given!r} is none of {', '.join(GAMES)}, pgx:NAME")


def new_engine(setting: Setting) -> Engine:
    chosen = benchmark_of(setting.game)
    game = tensor_game_of(chosen.source)
    assert game is not None
    kind, model, algorithm = game.spec.kinds[0], chosen.model, chosen.algorithm
    players = [
        TrainedPlayer(f"player{number}", (model.build(kind, number),), algorithm, setting.learner, seed=number)
        for number in range(setting.learners)
    ]
    layout = Layout.fit(
        game,
        learners=setting.learners,
        num_tables=setting.tables,
        matches=setting.matches,
        batch_size=setting.learner.batch_size,
    )
    engine = Engine(game, layout, players, setting.config, seed=0)
    sides = layout.sides
    for block in range(layout.num_blocks):
        player, place = divmod(block, layout.blocks)
        versus = setting.league and place % 2 == 1
        rows = [player] * sides
        for side in range(1, sides) if versus else ():
            policy: Any = model.build(kind, 100 + block * sides + side)
            weights = {name: tensor.detach().numpy() for name, tensor in policy.named_parameters()}
            frozen = {f"{kind.name}/{name}": array for name, array in weights.items()}
            rows[side] = engine.row_of_opponent(block, side)
            engine.load_opponent(rows[side], frozen)
        engine.seat(block, rows, [True] + [not versus] * (sides - 1), 10**6)
    versus_each = layout.blocks // 2 if setting.league else 0
    engine.expect([sides * layout.blocks - (sides - 1) * versus_each] * setting.learners)
    return engine


@contextmanager
def held(path: Path | None) -> Iterator[None]:
    """Hold the lock of programs that measure one after the other."""
    if path is None:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def speed(
    setting: Setting, seconds: float, *, windows: int = 3, each: int = 4, lock: Path | None = None
) -> tuple[float, float, float]:
    """Decisions per second: the least and the most of some windows, of `each` iterations or more; and the seconds until
    the first of them."""
    began = time.monotonic()
    engine = new_engine(setting)
    for _ in range(each + 1):  # compiling, recording, and one replay
        engine.iterate(0.0)
    engine.read()
    prepared = time.monotonic() - began
    found = []
    with held(lock):
        for _ in range(windows):
            start, before = time.monotonic(), sum(player.decisions for player in engine.players)
            while time.monotonic() - start < seconds / windows:
                for _ in range(each):
                    engine.iterate(0.0)
                engine.tally()  # waits, as the runtime does when it looks at the matches
            engine.read()
            decisions = sum(player.decisions for player in engine.players) - before
            found.append(decisions / (time.monotonic() - start))
    return min(found), max(found), prepared


def whole_run(setting: Setting, seconds: float, *, lock: Path | None = None) -> tuple[float, int, int]:
    """Decisions per second of a whole training once it has warmed up, its finished matches and its snapshots."""
    mixed = Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP(weighting="squared"))))
    every = 50 * setting.learner.batch_size
    roles = {"main": Role(matchmaking=mixed if setting.league else SelfPlay(), promotion=BySteps(every=every))}
    if setting.league:
        roles["exploiter"] = Role(count=2, matchmaking=mixed, promotion=BySteps(every=every))
    experiment = Experiment(
        name="device",
        game=benchmark_of(setting.game).source,
        budget=10**15,
        model=benchmark_of(setting.game).model,
        algorithm=benchmark_of(setting.game).algorithm,
        actor=ActorConfig(num_tables=setting.tables, matches=setting.matches, episodes_per_table=32),
        learner=setting.learner,
        league=LeagueRules(roles=roles),
        evaluation=EvaluationConfig(opponents=(), past=0, ladder=0),
        checkpoint_every=10**15,
        runtime="device",
        device=setting.config,
    )
    seen: list[tuple[float, float]] = []
    measuring = ExitStack()

    def watch(training: Any) -> None:
        numbers = training.numbers()
        if numbers["updates"] >= 10 * setting.learners:
            if not seen:
                measuring.enter_context(held(lock))
            seen.append((time.monotonic(), numbers["decisions"]))
        if seen and time.monotonic() - seen[0][0] >= seconds:
            raise StopTraining("measured")

    with (
        measuring,
        tempfile.TemporaryDirectory() as folder,
        closing(device_training(experiment, create_run(Path(folder) / "run", experiment))) as training,
    ):
        training.run(watch)
        numbers, league = training.numbers(), training.league
    (first, before), *_, (last, after) = seen
    return (after - before) / (last - first), int(numbers["matches"]), len(league.candidates.frozen())


def measure(chosen: Any, device: str) -> tuple[list[list[str]], list[list[str]]]:
    rows: list[list[str]] = []
    runs: list[list[str]] = []
    for game in chosen.games:
        default = benchmark_of(game).small if chosen.small else benchmark_of(game).tables
        for tables in chosen.tables or [default]:
            for mode in chosen.modes:
                speeds: dict[str, float] = {}
                for kind in chosen.kinds if chosen.engine else ():
                    league = kind == "league"
                    setting = Setting(game, league, tables, mode, device, chosen.precision)
                    how = {"windows": 1, "each": 1} if chosen.small else {}
                    low, high, prepared = speed(setting, chosen.seconds, **how, lock=chosen.lock)
                    speeds[kind] = high
                    tax = f"{speeds[KINDS[0]] / high:.2f}" if league and len(speeds) > 1 else ""
                    rows.append([game, kind, f"{tables:,}", mode, _millions(low, high), tax, f"{prepared:.0f} s"])
                    print(*rows[-1], sep=" | ", flush=True)
            if chosen.run:
                for kind in chosen.kinds:
                    setting = Setting(game, kind == "league", tables, chosen.modes[0], device, chosen.precision)
                    found, matches, frozen = whole_run(setting, chosen.seconds, lock=chosen.lock)
                    runs.append([game, kind, f"{tables:,}", _millions(found), str(matches), str(frozen)])
                    print("run", *runs[-1], sep=" | ", flush=True)
    return rows, runs


def growth(chosen: Any, device: str) -> list[list[str]]:
    """The league of connect four with more tables, frozen players and learning players."""
    rows = []
    for learners, frozen, tables in GROWTH:
        blocks = -(-frozen // learners) * 2 * learners
        tables = (264 if chosen.small else tables) // (2 * blocks) * 2 * blocks or 2 * blocks
        setting = Setting(
            "connect_four", True, tables, chosen.modes[0], device, chosen.precision, (learners, blocks // 2)
        )
        low, high, _ = speed(setting, chosen.seconds, lock=chosen.lock)
        rows.append([str(learners), str(blocks // 2), f"{tables:,}", _millions(low, high)])
        print("growth", *rows[-1], sep=" | ", flush=True)
    return rows


def _millions(*speeds: float) -> str:
    return " - ".join(f"{one / 1e6:.3g}" for one in speeds)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    default = ["connect_four", "kuhn"]
    options.add_argument("--games", nargs="+", default=default, type=game_name, help=f"{', '.join(GAMES)}, or pgx:NAME")
    options.add_argument(
        "--tables", nargs="+", type=int, help="multiples of 132; default: 101,376, or 4,224 of skirmish"
    )
    options.add_argument(
        "--modes",
        nargs="+",
        default=["compiled", "graph", "eager"],
        choices=["compiled", "autotuned", "graph", "eager"],
        help="the first is also for runs",
    )
    options.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options.add_argument("--growth", action="store_true", help="the league of connect four in several sizes, alone")
    options.add_argument("--lock", type=Path, help="measure only while holding the lock of this file")
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options.add_argument("--precision", default="bfloat16", choices=["bfloat16", "float32"])
    options.add_argument("--device", default="auto")
    options.add_argument("--no-run", dest="run", action="store_false", help="leave out whole trainings")
    options.add_argument("--no-engine", dest="engine", action="store_false", help="leave out the engine alone")
    options.add_argument("--no-report", action="store_true")
    options.add_argument("--small", action="store_true", help="few tables, a second: to see that it works")
    chosen = options.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    device = find_device(chosen.device, "--device")
    if wrong := [tables for tables in chosen.tables or () if tables % (4 * FROZEN)]:
        options.error(f"--tables must be multiples of {4 * FROZEN}, got {wrong[0]}")
    if chosen.small:
        chosen.seconds, chosen.modes, chosen.precision = 0.5, ["eager"], "float32"
    if device.type == "cpu":
        torch.set_num_threads(1)
    rows, runs = ([], []) if chosen.growth else measure(chosen, str(device))
    grown = growth(chosen, str(device)) if chosen.growth else []
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "one core"
    columns = ("game", "", "tables", "mode", "M decisions/s, least - most", "league tax", "prepared in")
    heading = f"{STEPS} steps, one epoch of {MINIBATCHES} minibatches"
    tables: list[Table] = [(f"The engine alone ({heading})", columns, rows)] if rows else []
    if grown:
        columns_of_growth = ("learning players", "frozen players", "tables", "M decisions/s, least - most")
        tables.append((f"League of connect four, {chosen.modes[0]} ({heading})", columns_of_growth, grown))
    if runs:
        columns_of_runs = ("game", "", "tables", "M decisions/s", "matches", "frozen players")
        tables.append(("Whole trainings: controller, ledger, PFSP, snapshots", columns_of_runs, runs))
    about = "growth" if chosen.growth else "-".join(game.replace(":", "_") for game in chosen.games)
    write(
        f"device-{about}-{device.type}",
        "The device runtime",
        tables,
        facts={"device": name, "precision": chosen.precision},
        notes=["Counted are decisions of learning players that were trained on; the league tax is self-play / league."],
        keep=not (chosen.small or chosen.no_report),
    )


if __name__ == "__main__":
    main()

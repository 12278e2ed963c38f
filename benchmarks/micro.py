"""Rates of the parts, one thread: games, hand-over, acting, learning, opponents, ledger. CPU time unless
said otherwise, best of several windows.

python benchmarks/micro.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _best import WINDOWS, best
from _handover import BYTES, handover_rates
from _report import Table, parser, write
from _whole_training import ledger_share, opponent_rates

from ludus.algorithms.ppo import PPO
from ludus.data.batch import Batch
from ludus.data.records import MatchIssued, MatchVoid
from ludus.data.specs import SeatKind
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import Array, Tree
from ludus.games.bots import RandomBot
from ludus.games.catalog import list_games, resolve
from ludus.games.game import GameBatch, allocate_actions
from ludus.league.league import League
from ludus.league.matchmaking import SelfPlay
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import ActorCritic, NetworkPolicy, stack_policies
from ludus.store.ledger import Ledger
from ludus.workers.config import LearnerConfig
from ludus.workers.trained_player import TrainedPlayer

TABLES = 1024
STEPS = 50
UNROLL = 16


def game_rates() -> list[tuple[str, str]]:
    return [
        (entry.address, f"{game_rate(resolve(entry.address).tables(TABLES)) / 1e6:.2f} M table-steps/s")
        for entry in list_games()
        if entry.library is None
    ]


def game_rate(game: GameBatch) -> float:
    """Best window of `step` and `reset` under random play; what the random bot takes does not count."""
    rng = np.random.default_rng(0)
    bot = RandomBot()
    actions = allocate_actions(game.spec, TABLES)
    game.reset(np.arange(TABLES), np.arange(TABLES, dtype=np.uint64))
    rates = []
    for _ in range(WINDOWS):
        spent = 0.0
        for _ in range(STEPS):
            _choose(game, bot, actions, rng)
            seeds = rng.integers(0, 2**63, TABLES, dtype=np.uint64)
            before = time.process_time()
            game.step(actions)
            ended = np.nonzero(game.view.over | game.view.truncated)[0]
            if len(ended):
                game.reset(ended, seeds[ended])
            spent += time.process_time() - before
        rates.append(STEPS * TABLES / spent)
    return max(rates)


def _choose(game: GameBatch, bot: RandomBot, actions: tuple[Tree, ...], rng: np.random.Generator) -> None:
    for kind, seats in enumerate(game.spec.seats_of_kind):
        tables, columns = np.nonzero(game.view.to_act[:, list(seats)])
        if len(tables):
            chosen = bot.act(game, tables, np.array(seats)[columns], rng)
            for head, values in chosen.items():
                actions[kind][head][tables, columns] = values


def acting_rates(kind: SeatKind) -> list[tuple[str, str]]:
    model = ActorCritic(hidden=(128, 128))
    rows = []
    for batch in (1, 32, 256, 1024):
        policy = model.build(kind, 0)
        rate = _acting_rate([policy], _inputs(policy, batch))
        rows.append((f"one model, {batch} rows", f"{rate / 1e3:,.0f} k rows/s, {batch / rate * 1e6:,.0f} us"))
    models = [model.build(kind, seed) for seed in range(16)]
    for batch in (1, 64):
        stacked = _acting_rate([stack_policies(models)], _inputs(models[0], 16, batch))
        looped = _acting_rate(models, _inputs(models[0], batch))
        rows.append((f"16 models stacked, {batch} rows each", f"{stacked / 1e3:,.0f} k rows/s"))
        rows.append((f"16 models in a loop, {batch} rows each", f"{looped / 1e3:,.0f} k rows/s"))
    return rows


def _acting_rate(policies: list[NetworkPolicy], inputs: tuple[Tree, Tree, Array]) -> float:
    observation, legal, uniforms = inputs

    def work() -> int:
        return sum(policy.act(observation, legal, {}, uniforms).value.size for policy in policies for _ in range(20))

    return best(work)


def _inputs(policy: NetworkPolicy, *leading: int) -> tuple[Tree, Tree, Array]:
    rng = np.random.default_rng(0)
    kind = policy.kind
    observation = {
        name: rng.random((*leading, *spec.shape), np.float32) for name, spec in kind.observation.arrays.items()
    }
    legal = {name: np.ones((*leading, *spec.shape), bool) for name, spec in kind.legal_arrays.items()}
    return observation, legal, rng.random((*leading, policy.num_draws), np.float32)


def learning_rates(kind: SeatKind) -> list[tuple[str, str]]:
    """One PPO gradient step on a batch of one minibatch; copying, advantages and the average included."""
    rows = []
    for size in (256, 512, 2_048, 4_096, 16_384):
        config = LearnerConfig(batch_size=size, minibatch_size=size, epochs=1, device="cpu")
        policy = ActorCritic(hidden=(128, 128)).build(kind, 0)
        trained = TrainedPlayer("main", (policy,), PPO(), config, seed=0)
        batch = _batch(policy, size)

        def work(trained: TrainedPlayer = trained, batch: Batch = batch) -> int:
            before = trained.decisions
            for _ in range(3):
                trained.update({0: batch}, 0.0)
            return trained.decisions - before

        rate = best(work)
        rows.append((f"minibatch of {size:,}", f"{size / rate * 1e3:.1f} ms, {rate / 1e3:,.0f} k decisions/s"))
    return rows


def _batch(policy: NetworkPolicy, size: int) -> Batch:
    """Full trajectories of decisions by this policy about random observations."""
    num = size // UNROLL
    pool = SlotPool(TrajectoryLayout(kind=policy.kind, unroll_length=UNROLL), num)
    observation, legal, uniforms = _inputs(policy, num, UNROLL + 1)
    draws = uniforms.reshape(-1, policy.num_draws)
    acted = policy.act(_rows(observation), _rows(legal), {}, draws)
    filled: Tree = {
        **{f"observation.{name}": array for name, array in observation.items()},
        **{f"legal.{name}": array for name, array in legal.items()},
        **{f"action.{name}": array for name, array in acted.action.items()},
        "log_prob": acted.log_prob,
        "value": acted.value,
        "elapsed": np.ones(num * (UNROLL + 1)),
        "decision": np.ones(num * (UNROLL + 1)),
    }
    for name, array in filled.items():
        pool.rows[name][...] = array.reshape(pool.rows[name].shape)
    pool.slots["length"][...] = UNROLL
    return pool.stack(np.arange(num))


def _rows(tree: Tree) -> Tree:
    """The first two axes as one."""
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in tree.items()}


def ledger_rates() -> list[tuple[str, str]]:
    """Commits that are on disk when they return; what a commit costs in wall time is mostly the disk's."""
    rules = LeagueRules(roles={"main": Role(matchmaking=SelfPlay())})
    league = League(rules, num_teams=2, seats_per_team=(1, 1), seed=0)
    for event in league.initial_events():
        league.apply(event)
    match = league.next_match(1, tables=1, episodes_per_table=2)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for group in (2, 64):
            ledger = Ledger(Path(folder) / f"{group}.db")
            numbers = itertools.count(1)

            def work(ledger: Ledger = ledger, group: int = group, numbers: Iterator[int] = numbers) -> int:
                for _ in range(20):
                    ids = list(itertools.islice(numbers, group // 2))
                    issued = [MatchIssued(type(match)(i, "training", match.sides, 1, 2)) for i in ids]
                    ledger.append([*issued, *(MatchVoid(i, "benchmark") for i in ids)])
                return 20

            wall = best(work, clock=time.monotonic)
            cpu = best(work)
            figures = f"{wall:,.0f} commits/s (wall), {1e6 / cpu:,.0f} us of CPU each, {wall / cpu:.0%} of a core"
            rows.append((f"synced, {group} rows a commit", figures))
            ledger.close()
    return rows


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--no-report", action="store_true", help="print the figures only")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    kind = resolve("connect_four").spec.kinds[0]
    columns = ("what", "figure")
    network = "connect four, 2 x 128 tanh, separate critic"
    handover = f"Hand-over of {BYTES // 1024} KiB and an answer, two processes; wall time, best (worst) window"
    opponents = "Opponents: whole steps of the actor, connect four, 1,024 tables in 16 matches"
    tables: list[Table] = [
        (handover, columns, handover_rates()),  # first: it forks, and later there are threads
        (f"Games alone, {TABLES} tables, observations included", columns, game_rates()),
        (f"Acting, {network}", columns, acting_rates(kind)),
        (f"Learning, one PPO gradient step, {network}", columns, learning_rates(kind)),
        ("Ledger alone", columns, ledger_rates()),
        ("Ledger in a run: `ludus train kuhn` without evaluation", columns, ledger_share()),
        (opponents, columns, opponent_rates()),
    ]
    write("micro", "Rates of the parts", tables, keep=not chosen.no_report)


if __name__ == "__main__":
    main()

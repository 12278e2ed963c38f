"""Rates of the parts, one thread: games, acting, learning, ledger. CPU time, best of several windows.

python benchmarks/micro.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _report import parser, write

from ludus.data.records import MatchIssued, MatchVoid
from ludus.data.specs import SeatKind
from ludus.data.trees import Tree
from ludus.games.bots import RandomBot
from ludus.games.catalog import list_games, resolve
from ludus.games.game import GameBatch, allocate_actions
from ludus.league.league import League
from ludus.league.matchmaking import SelfPlay
from ludus.league.rules import LeagueRules, Role
from ludus.models.network_policy import stack_policies
from ludus.models.networks import ActorCritic
from ludus.store.ledger import Ledger

WINDOWS = 7
TABLES = 1024
STEPS = 50


def best(work: Callable[[], int], *, clock: Callable[[], float] = time.process_time) -> float:
    """Units per second in the best window; `work` returns how many it did."""
    work()
    rates = []
    for _ in range(WINDOWS):
        before = clock()
        units = work()
        rates.append(units / (clock() - before))
    return max(rates)


def game_rates() -> list[tuple[str, str]]:
    return [
        (entry.address, f"{game_rate(resolve(entry.address).tables(TABLES)) / 1e6:.2f} M table-steps/s")
        for entry in list_games()
        if ":" not in entry.address
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


def model_rates(kind: SeatKind) -> list[tuple[str, str]]:
    torch.set_num_threads(1)
    policy = ActorCritic(hidden=(128, 128)).build(kind, 0)
    rng = np.random.default_rng(0)

    def inputs(*leading: int) -> tuple[Tree, Tree, np.ndarray]:
        observation = {
            name: rng.random((*leading, *spec.shape), np.float32)
            for name, spec in kind.observation.arrays.items()
        }
        legal = {name: np.ones((*leading, *spec.shape), bool) for name, spec in kind.legal_arrays.items()}
        return observation, legal, rng.random((*leading, policy.num_draws), np.float32)

    rows = []
    for batch in (32, 256, 1024):
        observation, legal, uniforms = inputs(batch)
        rate = best(lambda o=observation, m=legal, u=uniforms: len(policy.act(o, m, {}, u).value))
        rows.append((f"act, one model, {batch} rows", f"{rate / 1e3:.0f} k rows/s"))
    stacked = stack_policies([ActorCritic(hidden=(128, 128)).build(kind, seed) for seed in range(16)])
    observation, legal, uniforms = inputs(16, 64)
    rate = best(lambda: stacked.act(observation, legal, {}, uniforms).value.size)
    rows.append(("act, sixteen models stacked, 64 rows each", f"{rate / 1e3:.0f} k rows/s"))
    return rows


def ledger_rates() -> list[tuple[str, str]]:
    rules = LeagueRules(roles={"main": Role(matchmaking=SelfPlay())})
    league = League(rules, num_teams=2, seats_per_team=(1, 1), seed=0)
    for event in league.initial_events():
        league.apply(event)
    match = league.next_match(1, tables=1, episodes_per_table=2)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for group in (1, 64):
            ledger = Ledger(Path(folder) / f"{group}.db")
            numbers = iter(range(1, 10**9))

            def work(ledger: Ledger = ledger, group: int = group, numbers: object = numbers) -> int:
                for _ in range(20):
                    ids = [next(numbers) for _ in range(group // 2 or 1)]  # type: ignore[call-overload]
                    issued = [MatchIssued(type(match)(i, "training", match.sides, 1, 2)) for i in ids]
                    ledger.append([*issued, *(MatchVoid(i, "benchmark") for i in ids)])
                return 20 * 2 * len(ids)

            rate = best(work, clock=time.monotonic)
            rows.append((f"ledger, synced, {max(group, 2)} rows a commit", f"{rate:,.0f} rows/s (wall)"))
            ledger.close()
    return rows


def main() -> None:
    parser(__doc__).parse_args()
    kind = resolve("connect_four").spec.kinds[0]
    columns = ("what", "rate")
    write(
        "micro",
        "Rates of the parts",
        [
            (f"Games alone, {TABLES} tables, observations included", columns, game_rates()),
            ("Acting, connect four, 2 x 128 tanh, separate critic", columns, model_rates(kind)),
            ("Ledger", columns, ledger_rates()),
        ],
    )


if __name__ == "__main__":
    main()

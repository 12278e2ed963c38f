"""Decisions of a player that searches with its network, per CPU second of one thread, beside the network alone and UCT.

python benchmarks/search.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from contextlib import closing
from functools import partial

import numpy as np
import torch
from _best import best
from _report import Table, parser, write

from ludus.data.search import GumbelSearch
from ludus.games.bots import RandomBot, act_among
from ludus.games.catalog import resolve
from ludus.games.game import Bot, GameBatch, GameSource, allocate_actions
from ludus.games.network_search import SearchingBot
from ludus.games.search import UctBot
from ludus.models.network_policy import ActorCritic
from ludus.workers.player_cache import search_with

OPENING = {"connect_four": 8, "tic_tac_toe": 2, "openspiel:othello": 12, "openspiel:go(board_size=9)": 20}
"""Random moves before the position that is searched."""


def opened(source: GameSource, num_tables: int, moves: int) -> GameBatch:
    tables = source.tables(num_tables)
    rng, actions = np.random.default_rng(0), allocate_actions(source.spec, num_tables)
    tables.reset(np.arange(num_tables), np.arange(num_tables, dtype=np.uint64))
    for _ in range(moves):
        act_among(RandomBot(), tables, np.ones((1, 1), np.bool_), rng, actions)
        tables.step(actions)
    return tables


def decide(bot: Bot, tables: GameBatch, rng: np.random.Generator) -> int:
    rows, seats = np.nonzero(tables.view.to_act)
    bot.act(tables, rows, seats, rng)
    return len(rows)


def rates(address: str, num_tables: int) -> list[tuple[str, str, str]]:
    source = resolve(address)
    policies = (
        ActorCritic(hidden=(128, 128), activation="relu", separate_critic=False).build(source.spec.kinds[0], 0),
    )
    rng = np.random.default_rng(0)
    found = []

    def alone(tables: GameBatch) -> int:
        rows, seats = np.nonzero(tables.view.to_act)
        seen = {name: array[rows, seats] for name, array in tables.view.observation[0].items()}
        legal = {name: array[rows, seats] for name, array in tables.view.legal[0].items()}
        policies[0].act(seen, legal, {}, rng.random((len(rows), policies[0].num_draws), np.float32), want_value=False)
        return len(rows)

    with closing(opened(source, num_tables, OPENING[address])) as tables:
        found.append((address, "network alone", f"{best(partial(alone, tables)):,.0f}"))
        for simulations in (16, 64, 256):
            search = search_with(source, GumbelSearch(simulations=simulations), lambda: policies)
            bot = SearchingBot(search, noise=True)
            found.append((address, f"search={simulations}", f"{best(partial(decide, bot, tables, rng)):,.0f}"))
    with closing(opened(source, 8, OPENING[address])) as tables:
        found.append(
            (address, "uct, 64 playouts", f"{best(partial(decide, UctBot(simulations=64), tables, rng)):,.0f}")
        )
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tables", type=int, default=256)
    arguments.add_argument("--no-report", action="store_true", help="print the figures only")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    rows = [row for address in OPENING for row in rates(address, chosen.tables)]
    heading = f"Decisions per CPU second, {chosen.tables} tables together, network of 2 x 128 (UCT: table by table)"
    table: Table = (heading, ("game", "player", "decisions/s"), rows)
    write("search", "Search with a network", [table], keep=not chosen.no_report)


if __name__ == "__main__":
    main()

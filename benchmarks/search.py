"""Search with a network: how fast a player decides, and whether training by search pays.

    python benchmarks/search.py                                   decisions per CPU second, beside the network and UCT
    python benchmarks/search.py train --folder runs/othello       on a GPU: othello by search and by PPO, side by side
    python benchmarks/search.py measure --folder runs/othello     anywhere: the ones against the others

`train` gives both recipes the same minutes and the same share of the machine: all runs train at the same time, for so
long after everything is compiled. Their budgets follow their speed, because learning rates follow the budget. What a
run is measured by is kept in FOLDER/packed, in a file of a few megabytes for each run.

`measure` plays the final averaged weights, by the network alone, with the most probable moves. Games begin after random
moves; each such opening is played twice, with the seats swapped. With OpenSpiel, UCT plays too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from _best import best
from _report import Table, parser, write

import ludus
from ludus.data.search import GumbelSearch
from ludus.games.bots import RandomBot, act_among
from ludus.games.catalog import resolve
from ludus.games.game import Bot, GameBatch, GameSource, allocate_actions
from ludus.games.network_search import SearchingBot
from ludus.games.search import UctBot
from ludus.league.payoff import wilson_interval
from ludus.models.network_policy import ActorCritic
from ludus.store.run_folder import read_metrics
from ludus.workers.player_cache import search_with

OPENING = {"connect_four": 8, "tic_tac_toe": 2, "openspiel:othello": 12, "openspiel:go(board_size=9)": 20}
"""Random moves before the position that is searched."""
RECIPES = ("othello_search", "othello_ppo")
"""What is trained; the first ones against the second ones are what `measure` is for."""
PACKED = "packed"
COMPILED_AFTER = 4
"""Updates, of which the first are slow: everything is compiled and recorded in them."""
LUDUS = (sys.executable, "-m", "ludus.cli.main")


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


# --- training by search and by PPO, for the same time ---


def train(folder: Path, seeds: Sequence[int], minutes: float, settings: Sequence[str]) -> None:
    """Train both recipes on every seed, all at once."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [folder / f"{recipe}-{seed}" for seed in seeds for recipe in RECIPES]
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // len(runs))), **os.environ}
    processes = {}
    for run in runs:
        recipe, _, seed = run.name.rpartition("-")
        changes = [part for change in (f"seed={seed}", *settings) for part in ("--set", change)]
        program = [*LUDUS, "train", recipe, "--run", str(run), "--quiet", *changes]
        processes[run] = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL)
    try:
        _let_train(processes, 60 * minutes)
    finally:
        for process in processes.values():
            process.terminate()
    for run in runs:
        print(json.dumps(pack(run, folder / PACKED)), flush=True)


def _let_train(processes: dict[Path, subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait for the runs, and again and again set their budgets to what the seconds are good for: learning rates follow
    the budget. The seconds of a run begin when everything is compiled."""
    every = min(20.0, seconds / 10)
    looked = time.monotonic()
    while any(process.poll() is None for process in processes.values()):
        time.sleep(0.2)
        if failed := [run.name for run, process in processes.items() if process.poll()]:
            raise SystemExit(f"{', '.join(failed)} ended with an error")
        if time.monotonic() - looked < every:
            continue
        looked, changes = time.monotonic(), []
        for run, process in processes.items():
            rows = [row for row in _updates(run) if row["updates"] > COMPILED_AFTER]
            if not rows or process.poll() is not None:
                continue
            now, left = rows[-1], rows[0]["time"] + seconds - rows[-1]["time"]
            then = next(row for row in rows if now["time"] - row["time"] <= max(every, 10.0))
            if left > every and now["time"] - then["time"] > every / 2:
                rate = (now["decisions"] - then["decisions"]) / (now["time"] - then["time"])
                budget = round(now["decisions"] + rate * left)
                print(f"{run.name}: {rate:,.0f} decisions per second, {left:.0f} s left", flush=True)
                changes.append(
                    subprocess.Popen([*LUDUS, "set", str(run), f"budget={budget}"], stdout=subprocess.DEVNULL)
                )
        for change in changes:
            if change.wait():
                print("a budget was not set: the run is about to end", flush=True)


def _updates(run: Path) -> list[dict[str, float]]:
    path = run / "metrics" / "train.jsonl"
    return read_metrics(path)[0] if path.exists() else []


def pack(run: Path, into: Path) -> dict[str, object]:
    """What playing needs of a run, in one file: facts, ledger, metrics and the final averaged weights."""
    into.mkdir(exist_ok=True)
    rows = _updates(run)
    step = max(int(path.name.split(".")[0].split("-")[1]) for path in (run / "models/main").glob("*.average.json"))
    path = into / f"{run.name}.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name in ("run.json", "ledger.db", "metrics", "status.json"):
            file.add(run / name, f"{run.name}/{name}")
        for one in (run / "models/main").glob(f"*-{step}.average.*"):
            file.add(one, f"{run.name}/models/main/{one.name}")
    compiled = [row["time"] for row in rows if row["updates"] > COMPILED_AFTER]
    seconds = rows[-1]["time"] - compiled[0]
    return {
        "run": run.name,
        "decisions": rows[-1]["decisions"],
        "seconds": round(seconds),
        "packed": path.stat().st_size,
    }


# --- the ones against the others ---

Mover = Callable[[GameBatch, np.ndarray, np.ndarray], np.ndarray]
"""Tables, those where it is to move, and the seats there -> moves."""


def _network(run: Path) -> tuple[Mover, str]:
    """A mover with the final averaged weights of a run, and what it has trained on."""
    [main] = [one for one in ludus.Run(run).league().players if one.id == "main"]
    agent = ludus.load_agent(run, _final(run), greedy=True)

    def move(tables: GameBatch, rows: np.ndarray, seats: np.ndarray) -> np.ndarray:
        seen = {name: array[rows, seats] for name, array in tables.view.observation[0].items()}
        legal = {name: array[rows, seats] for name, array in tables.view.legal[0].items()}
        found: np.ndarray = agent.act_batch(seen, legal)[0]
        return found

    return move, f"{main.decisions:,}"


def _final(run: Path) -> str:
    players = ludus.Run(run).league().players
    return max((one for one in players if one.parent == "main"), key=lambda one: one.decisions).id


def _random(rng: np.random.Generator) -> Mover:
    def move(tables: GameBatch, rows: np.ndarray, seats: np.ndarray) -> np.ndarray:
        [legal] = tables.view.legal[0].values()
        masks = legal[rows, seats]
        return np.where(masks, rng.random(masks.shape), -1.0).argmax(1)

    return move


class Uct:
    """UCT at the tables of OpenSpiel's othello, which follow the moves of those that are played."""

    def __init__(self, simulations: int, seed: int) -> None:
        self.follows = "openspiel:othello"
        self._bot, self._rng = UctBot(simulations=simulations), np.random.default_rng(seed)
        self.tables: GameBatch | None = None

    def __call__(self, tables: GameBatch, rows: np.ndarray, seats: np.ndarray) -> np.ndarray:
        followed = self.tables
        assert followed is not None
        [legal] = tables.view.legal[0].values()
        masks = legal[rows, seats]
        moves = masks.argmax(1)  # where there is one, which may be a pass after the end in OpenSpiel
        asked = np.flatnonzero(masks.sum(1) > 1)
        if len(asked):
            [same] = followed.view.legal[0].values()
            assert (same[rows[asked], seats[asked]] == masks[asked]).all(), "OpenSpiel has other rules"
            moves[asked] = next(iter(self._bot.act(followed, rows[asked], seats[asked], self._rng).values()))
        return moves


def points(one: Mover, other: Mover, source: GameSource, games: int, opening: int, seed: int) -> float:
    """What the first player wins, a draw counted as a half, in so many games. Tables 2k and 2k + 1 begin with the same
    random moves; the first player has seat 0 at the one and seat 1 at the other."""
    rng, everywhere = np.random.default_rng(seed), np.arange(games)
    with ExitStack() as stack:
        played = [stack.enter_context(closing(source.tables(games)))]
        for mover in (one, other):
            if isinstance(mover, Uct):
                mover.tables = stack.enter_context(closing(resolve(mover.follows).tables(games)))
                played.append(mover.tables)
        for tables in played:
            tables.reset(everywhere, everywhere.astype(np.uint64))
        view, own_seat, moves, step = played[0].view, everywhere % 2, np.zeros(games, np.int64), 0
        at_random = _random(rng)
        while not view.over.all():
            rows = np.flatnonzero(view.to_act.any(1))
            seats = view.to_act[rows].argmax(1)
            if step < opening:
                moves[rows] = at_random(played[0], rows, seats)
                moves[1::2] = moves[::2]
            else:
                for mover, its in ((one, seats == own_seat[rows]), (other, seats != own_seat[rows])):
                    if its.any():
                        moves[rows[its]] = mover(played[0], rows[its], seats[its])
            for tables in played:
                actions = allocate_actions(source.spec, games)
                [chosen] = actions[0].values()
                chosen[:] = moves[:, None]
                tables.step(actions)
            step += 1
        own, others = (view.score[everywhere, seat] for seat in (own_seat, 1 - own_seat))
        return float((own > others).sum() + 0.5 * (own == others).sum())


def measure(folder: Path, games: int, opening: int, uct: int, uct_games: int, *, keep: bool) -> None:
    source = resolve("pgx:othello")
    with tempfile.TemporaryDirectory() as unpacked:
        for path in sorted((folder / PACKED).glob("*.tar.gz")):
            with tarfile.open(path) as file:
                file.extractall(unpacked, filter="data")
        runs = {recipe: sorted(Path(unpacked).glob(f"{recipe}-*")) for recipe in RECIPES}
        movers = {run: _network(run) for found in runs.values() for run in found}
    rows = []
    by_search, by_ppo = runs.values()
    for run, (_, trained_on) in movers.items():
        rows.append((run.name, "decisions trained on", trained_on))
    everything = 0.0
    for one, other in product(by_search, by_ppo):
        won = points(movers[one][0], movers[other][0], source, games, opening, seed=1)
        everything += won
        rows.append((one.name, other.name, _share(won, games)))
    pairs = len(by_search) * len(by_ppo)
    rows.append((f"all of {RECIPES[0]}", f"all of {RECIPES[1]}", _share(everything, games * pairs)))
    for run, (mover, _) in movers.items():
        won = points(mover, _random(np.random.default_rng(2)), source, games, opening, seed=2)
        rows.append((run.name, "random", _share(won, games)))
        if uct_games:
            won = points(mover, Uct(uct, seed=3), source, uct_games, opening, seed=3)
            rows.append((run.name, f"uct, {uct} playouts", _share(won, uct_games)))
    note = (
        f"Most probable moves of the final averaged weights, after {opening} random moves; 95 % intervals are of games."
    )
    table: Table = ("Won, draws counted as a half", ("player", "against", "won"), rows)
    write("search-othello", "Othello: trained by search and by PPO", [table], notes=[note], keep=keep)


def _share(won: float, games: int) -> str:
    low, high = wilson_interval(won, games)
    return f"{won / games:.1%} ({low:.0%} to {high:.0%})"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("what", nargs="?", choices=("rates", "train", "measure"), default="rates")
    arguments.add_argument("--tables", type=int, default=256, help="of `rates`")
    arguments.add_argument("--folder", type=Path, default=Path("runs/othello"))
    arguments.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    arguments.add_argument("--minutes", type=float, default=4.0, help="of each training")
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    arguments.add_argument("--games", type=int, default=400, help="of each pair")
    arguments.add_argument("--opening", type=int, default=8, help="random moves at the beginning of each game")
    arguments.add_argument("--uct", type=int, default=64, help="playouts of UCT")
    arguments.add_argument("--uct-games", type=int, default=40, help="0: without UCT, which needs OpenSpiel")
    arguments.add_argument("--no-report", action="store_true", help="print the figures only")
    chosen = arguments.parse_args()
    if chosen.games % 2 or chosen.uct_games % 2:
        arguments.error("--games and --uct-games must be even: each opening is played from both sides")
    torch.set_num_threads(1)
    if chosen.what == "train":
        train(chosen.folder.absolute(), chosen.seeds, chosen.minutes, chosen.settings)
    elif chosen.what == "measure":
        measure(chosen.folder, chosen.games, chosen.opening, chosen.uct, chosen.uct_games, keep=not chosen.no_report)
    else:
        rows = [row for address in OPENING for row in rates(address, chosen.tables)]
        heading = f"Decisions per CPU second, {chosen.tables} tables together, network of 2 x 128 (UCT: table by table)"
        table: Table = (heading, ("game", "player", "decisions/s"), rows)
        write("search", "Search with a network", [table], keep=not chosen.no_report)


if __name__ == "__main__":
    main()

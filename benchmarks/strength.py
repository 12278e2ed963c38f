"""How strong the recipes' agents are: trains each on seeds that were not used for tuning, measures, writes a report.

python benchmarks/strength.py connect_four               three seeds, one after the other
python benchmarks/strength.py connect_four --seeds 101   one of them
python benchmarks/strength.py hidden --seeds 100 101 102  all games of hidden information: exact NashConv
python benchmarks/strength.py connect_four_device kuhn_device leduc_device    on a GPU, ten minutes each
python benchmarks/strength.py connect_four --set budget=1000000 --folder /tmp/short    other settings: a look, no report

What a seed gave is kept in .strength/ when it is done, and the same command goes on with the others; a training that
was ended goes on from its checkpoint. Delete the folder to measure anew.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _report import parser, write

SEEDS = (101, 102, 103)
"""Settings were chosen on seeds below 100."""
GAMES = 400
LEADS = 1_000
"""Games whose leads are averaged, at least: as many as are published for SlimeVolley."""
FOLDER = Path(__file__).parent.parent / ".strength"


@dataclass(frozen=True)
class Strength:
    """One row of the results."""

    recipe: str
    measure: Callable[[Path, int], dict[str, float]]
    """Figures of a finished run, by name; from so many games against each opponent."""
    peer: str
    """The number of others that it stands beside, with its source."""
    settings: tuple[str, ...] = ()
    """What is changed in the recipe, as PATH=VALUE."""
    percent: bool = True
    """The figures are shares; otherwise plain numbers."""
    runtime: str = "auto"


def ludus(*arguments: str) -> str:
    program = [sys.executable, "-m", "ludus.cli.main", *arguments]
    return subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout


def by_yardstick(run: Path, games: int) -> dict[str, float]:
    """Averaged weights, most probable moves."""
    shown = ludus("eval", str(run), "main", "--yardstick", "--greedy", "-n", str(games), "--json")
    figures: dict[str, float] = {}
    for row in map(json.loads, shown.splitlines()):
        if "win_rate" in row:
            figures[f"against {row['players'][1]}"] = row["win_rate"]
            continue
        figures[f"keeps the value, {row['set']}"] = row["keeps_value"]
        if row["set"] == "all":
            figures["keeps it in decisive positions"] = row["keeps_value_decisive"]
            figures["optimal"] = row["optimal"]
    return figures


def by_nash_conv(run: Path, games: int) -> dict[str, float]:
    """The sum over the seats of what a best response gains, computed from the game tree: no game is played."""
    return {
        f"NashConv, {weights} weights": json.loads(ludus("exploit", str(run), "main", "--weights", weights, "--json"))[
            "exact"
        ]["nash_conv"]
        for weights in ("average", "live")
    }


def by_baseline(run: Path, games: int) -> dict[str, float]:
    """Averaged weights against the game's own player: the mean lead in points, actions sampled and most probable."""
    figures: dict[str, float] = {}
    for how, greedy in (("sampled", ()), ("greedy", ("--greedy",))):
        shown = ludus("eval", str(run), "main", "baseline", *greedy, "-n", str(max(games, LEADS)), "--json")
        found = json.loads(shown.splitlines()[-1])
        figures[f"lead over baseline, {how}"] = found["score"]
        figures[f"games lost, {how}"] = found["losses"] / found["episodes"]
    return figures


ALPHA_ZERO = (
    "AlphaZero.jl, network alone: 92 % against MCTS-1000 (tutorial of jonathan-laurent/AlphaZero.jl; 15 iterations of "
    "1 to 2 hours on an RTX 2070)"
)
SLIME = (
    "+0.353 ± 0.728 self-play with a genetic algorithm, 1.377 PPO trained against the baseline; published with the game"
)
HIDDEN = ("kuhn", "leduc", "liars_dice", "goofspiel_4", "goofspiel_5", "phantom_ttt", "dark_hex_3")
STRENGTHS = {
    "connect_four": Strength(
        recipe="connect_four",
        settings=("budget=50000000", "league.roles.main.promotion.every=5000000"),  # 20 minutes of one core
        measure=by_yardstick,
        peer=ALPHA_ZERO,
    ),
    "connect_four_search": Strength(
        recipe="connect_four_search", measure=by_yardstick, runtime="device", peer=ALPHA_ZERO
    ),
    "connect_four_device": Strength(
        recipe="connect_four_device", measure=by_yardstick, runtime="device", peer=ALPHA_ZERO
    ),
    "kuhn_device": Strength(
        recipe="kuhn_device", measure=by_nash_conv, percent=False, runtime="device", peer="as kuhn"
    ),
    "leduc_device": Strength(
        recipe="leduc_device", measure=by_nash_conv, percent=False, runtime="device", peer="as leduc"
    ),
    "slimevolley": Strength(recipe="slimevolley", measure=by_baseline, percent=False, runtime="device", peer=SLIME),
    "slimevolley_device": Strength(
        recipe="slimevolley_device", measure=by_baseline, percent=False, runtime="device", peer=SLIME
    ),
    "kuhn": Strength(
        recipe="kuhn",
        measure=by_nash_conv,
        percent=False,
        runtime="serial",
        peer="QPG .037, RPG .029 after about 8 M (Srinivasan et al. 2018, read off the figure)",
    ),
    "leduc": Strength(
        recipe="leduc",
        measure=by_nash_conv,
        percent=False,
        runtime="serial",
        peer="RPG, QPG .36 after 16 M (Srinivasan et al. 2018), NeuRD .38, ARMAC .18 after 22 M (all read off figures)",
    ),
    "liars_dice": Strength(
        recipe="liars_dice", measure=by_nash_conv, percent=False, runtime="serial", peer="no number is published"
    ),
    **{
        f"goofspiel_{cards}": Strength(
            recipe="liars_dice",
            measure=by_nash_conv,
            percent=False,
            runtime="serial",
            settings=(f"game.name=goofspiel(num_cards={cards},imp_info=True,points_order=descending)",),
            peer="no number is published",
        )
        for cards in (4, 5)
    },
    **{
        name: Strength(
            recipe="liars_dice",
            measure=by_nash_conv,
            percent=False,
            runtime="serial",
            settings=(f"game.name={game}", "game.from_tree=false", "budget=4000000"),
            peer="no number at hand (Rudolph et al. 2025, arXiv 2502.08938, train for 10 M steps)",
        )
        for name, game in (("phantom_ttt", "phantom_ttt"), ("dark_hex_3", "dark_hex(board_size=3)"))
    },
}


def one_seed(name: str, seed: int, settings: Sequence[str], games: int, folder: Path) -> dict[str, Any]:
    """Train and measure, or read what was measured before."""
    path, run = folder / f"{name}-{seed}.json", folder / f"{name}-{seed}"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    folder.mkdir(parents=True, exist_ok=True)
    strength = STRENGTHS[name]
    changes = (f"seed={seed}", *strength.settings, *settings)
    changed = ["--runtime", strength.runtime, *(part for change in changes for part in ("--set", change))]
    begun, cpu = time.monotonic(), _cpu_of_children()
    begin = ("train", "--run", str(run), "--resume") if run.exists() else ("train", strength.recipe, *changed)
    ludus(*begin, *(() if run.exists() else ("--run", str(run))), "--quiet")
    spent = {"seconds": time.monotonic() - begun, "cpu_seconds": _cpu_of_children() - cpu}
    players = json.loads(ludus("league", str(run), "--json"))["players"]
    facts = {"seed": seed, "settings": list(settings), "resumed": begin[-1] == "--resume"}
    measured = facts | spent | {"decisions": players[0]["decisions"], "figures": strength.measure(run, games)}
    path.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(name: str, seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean and standard deviation over the seeds."""
    strength, figures = STRENGTHS[name], []
    percent = strength.percent
    factor, form, unit = (100, ".1f", " %") if percent else (1, ".4f", "")
    for figure in seeds[0]["figures"]:
        values = [factor * seed["figures"][figure] for seed in seeds]
        spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        each = "" if percent else f" ({', '.join(f'{value:{form}}' for value in values)})"
        figures.append(f"{figure}: {statistics.mean(values):{form}}{spread}{unit}{each}")
    spent = [f"{seed['seconds']:.0f} s ({seed['cpu_seconds']:.0f} s)" for seed in seeds]
    if any(seed["resumed"] for seed in seeds):
        spent.append("a training was ended and went on: only the time since counts")
    strength = STRENGTHS[name]
    where = () if strength.runtime == "auto" else (f"--runtime {strength.runtime}",)
    command = " ".join(["ludus train", strength.recipe, *where, *(f"--set {one}" for one in strength.settings)])
    return [
        f"`{command}`",
        ", ".join(str(seed["seed"]) for seed in seeds),
        "<br>".join(figures),
        f"{seeds[0]['decisions'] / 1e6:.1f} M",
        "<br>".join(spent),
        strength.peer,
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "names",
        nargs="*",
        default=[name for name in STRENGTHS if not name.endswith("_device")],
        help=", ".join((*STRENGTHS, "hidden")),
    )
    arguments.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    arguments.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    arguments.add_argument("--games", type=int, default=GAMES, help="against each opponent")
    arguments.add_argument("--folder", type=Path, default=FOLDER)
    chosen = arguments.parse_args()
    chosen.names = [one for name in chosen.names for one in (HIDDEN if name == "hidden" else (name,))]
    for name in chosen.names:
        if name not in STRENGTHS:
            arguments.error(f"unknown: {name}; there are {', '.join(STRENGTHS)}")
    is_look = bool(chosen.settings) or chosen.games != GAMES
    if is_look and chosen.folder == FOLDER:
        arguments.error("--set and --games need a --folder of their own: .strength/ holds what the report quotes")
    rows = []
    for name in chosen.names:
        seeds = []
        for seed in chosen.seeds:
            seeds.append(one_seed(name, seed, chosen.settings, chosen.games, chosen.folder))
            print(json.dumps(seeds[-1]), flush=True)
        rows.append(row(name, seeds))
    columns = ("command", "seeds", "mean and standard deviation over seeds", "decisions", "time (CPU)", "beside it")
    notes = [
        "Rates: networks play their most probable moves with averaged weights (docs/yardstick.md). NashConv: exact, "
        "networks draw moves; the figures of the seeds are in brackets."
    ]
    report = "strength_hidden" if set(chosen.names) <= set(HIDDEN) else "strength"
    write(report, "How strong the agents are", [("Results", columns, rows)], notes=notes, keep=not is_look)


if __name__ == "__main__":
    main()

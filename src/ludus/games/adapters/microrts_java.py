"""MicroRTS in Java: starts it inside this process, finds its maps and makes its scripted players.

Only the jars of the package gym-microrts are used, not its Python code, which needs libraries of its time.
"""

from __future__ import annotations

import difflib
import importlib.util
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_JARS = ("microrts", "Coac", "Droplet", "GRojoA3N", "Izanagi", "MixedBot", "RojoBot", "TiamatBot", "UMSBot")
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xmx1g", "-Djava.awt.headless=true")
"""One thread for the collector: tables are played by many processes, one for each core."""

BOTS: Mapping[str, str] = {
    "passive": "ai.PassiveAI",
    "random_biased": "ai.RandomBiasedAI",
    "worker_rush": "ai.abstraction.WorkerRush",
    "light_rush": "ai.abstraction.LightRush",
    "naive_mcts": "ai.mcts.naivemcts.NaiveMCTS",
    "coac": "ai.coac.CoacAI",
    "droplet": "GNS.Droplet",
    "guided_rojo_a3n": "ai.competition.GRojoA3N.GuidedRojoA3N",
    "izanagi": "ai.competition.IzanagiBot.Izanagi",
    "mixed_bot": "ai.JZ.MixedBot",
    "rojo": "ai.competition.rojobot.Rojo",
    "tiamat": "ai.competition.tiamat.Tiamat",
}
"""Its scripted players -> their classes. Those from `coac` on are from its competitions."""


@dataclass(frozen=True)
class Map:
    """A map file and its size."""

    file: Path
    height: int
    width: int


def find_map(name: str) -> Map:
    """`maps/8x8/bases8x8.xml` (of the package), or `8x8` for a base and a worker each on a map of that
    size."""
    folder = _folder()
    short = {file.parent.name: file for file in sorted(folder.glob("maps/*/basesWorkers*x*[0-9].xml"))}
    file = short.get(name, folder / name)
    if not file.is_file():
        known = [*short, *(found.relative_to(folder).as_posix() for found in folder.glob("maps/**/*.xml"))]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        offer = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(short))}"
        raise ValueError(f"microrts has no map {name!r}; {offer}")
    root = ElementTree.parse(file).getroot()
    return Map(file, int(root.attrib["height"]), int(root.attrib["width"]))


def _folder() -> Path:
    spec = importlib.util.find_spec("gym_microrts")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "'gym_microrts' is not installed; ludus games --install microrts adds it", name="gym_microrts"
        )
    return Path(spec.origin).parent / "microrts"


class Java:
    """The classes of MicroRTS that tables need."""

    def __init__(self) -> None:
        import jpype

        if not jpype.isJVMStarted():
            jars = [str(_folder() / f"{name}.jar") for name in _JARS]
            try:
                jpype.startJVM(*_JVM_OPTIONS, classpath=jars, convertStrings=False)
            except jpype.JVMNotFoundException:
                raise FileNotFoundError(
                    "microrts needs Java, which is not installed: apt-get install default-jre-headless"
                ) from None
        find = self._find = jpype.JClass
        # The game and its players write what they do to the standard output, a line for each order.
        nowhere = find("java.io.PrintStream")(find("java.io.OutputStream").nullOutputStream())
        find("java.lang.System").setOut(nowhere)
        find("java.lang.System").setErr(nowhere)
        self.int_array = jpype.JArray(jpype.JInt)
        self.unit_action = find("rts.UnitAction")
        self.player_action = find("rts.PlayerAction")
        self.unit_types = find("rts.units.UnitTypeTable")()
        self._game_state = find("rts.GameState")
        self._physical = find("rts.PhysicalGameState")
        self._budgeted = find("ai.core.AIWithComputationBudget")

    def new_game(self, map_file: Path) -> Any:
        """A `rts.GameState` at its beginning."""
        return self._game_state(self._physical.load(str(map_file), self.unit_types), self.unit_types)

    def new_bot(self, name: str, milliseconds: int) -> Any:
        """An `ai.core.AI`; those that search get so long for a tick."""
        bot = self._find(BOTS[name])(self.unit_types)
        if isinstance(bot, self._budgeted) and bot.getTimeBudget() > 0:
            bot.setTimeBudget(milliseconds)
        return bot


@cache
def start_java() -> Java:
    """Once a process: a Java machine cannot be started again."""
    return Java()

"""Games: interfaces, built-in games, adapters, scripted players.

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.public_names import lazy, listing

if TYPE_CHECKING:
    from ludus.data.replay import (
        DecodedReplay as DecodedReplay,
        Episode as Episode,
        EpisodeFacts as EpisodeFacts,
        SeatPlayer as SeatPlayer,
        column_specs as column_specs,
    )
    from ludus.data.specs import (
        ActionSpec as ActionSpec,
        ArraySpec as ArraySpec,
        Choice as Choice,
        Entities as Entities,
        GameSpec as GameSpec,
        ObservationSpec as ObservationSpec,
        Planes as Planes,
        Point as Point,
        Pointer as Pointer,
        SeatKind as SeatKind,
        Vector as Vector,
        When as When,
    )
    from ludus.data.tree import TreeState as TreeState
    from ludus.data.trees import IntArray as IntArray, Tree as Tree, allocate as allocate
    from ludus.games.adapters.atari import Atari as Atari
    from ludus.games.adapters.fightingice import (
        COMMANDS as FIGHTINGICE_COMMANDS,  # noqa: F401
        FightingICE as FightingICE,
    )
    from ludus.games.adapters.football import Football as Football
    from ludus.games.adapters.gamecore import Gamecore as Gamecore
    from ludus.games.adapters.gamecore_client import CampAddress as CampAddress, Hero as Hero
    from ludus.games.adapters.gymnasium import Gymnasium as Gymnasium
    from ludus.games.adapters.gymnasium_old import OldGym as OldGym
    from ludus.games.adapters.microrts import MicroRTS as MicroRTS
    from ludus.games.adapters.openspiel import OpenSpiel as OpenSpiel
    from ludus.games.adapters.pettingzoo import PettingZoo as PettingZoo
    from ludus.games.adapters.pettingzoo_atari import MultiAtari as MultiAtari
    from ludus.games.adapters.pysc2 import (
        UNIT_X as PYSC2_UNIT_X,  # noqa: F401
        UNIT_Y as PYSC2_UNIT_Y,  # noqa: F401
        Computer as Computer,
        PySC2 as PySC2,
    )
    from ludus.games.adapters.slimevolley import SlimeVolley as SlimeVolley
    from ludus.games.adapters.vizdoom import ViZDoom as ViZDoom
    from ludus.games.bots import (
        HostedBot as HostedBot,
        RandomBot as RandomBot,
        Rows as Rows,
        StrategyBot as StrategyBot,
    )
    from ludus.games.builtin.beacon import Beacon as Beacon
    from ludus.games.builtin.blotto import Blotto as Blotto
    from ludus.games.builtin.connect_four import ConnectFour as ConnectFour
    from ludus.games.builtin.goofspiel import Goofspiel as Goofspiel
    from ludus.games.builtin.hills import Hills as Hills
    from ludus.games.builtin.kuhn import Kuhn as Kuhn
    from ludus.games.builtin.leduc import Leduc as Leduc
    from ludus.games.builtin.rock_paper_scissors import RockPaperScissors as RockPaperScissors
    from ludus.games.builtin.siege import Siege as Siege
    from ludus.games.builtin.skirmish import Skirmish as Skirmish
    from ludus.games.builtin.skirmish_bots import (
        HERO_STRATEGIES as SKIRMISH_HERO_STRATEGIES,  # noqa: F401
        STRATEGIES as SKIRMISH_STRATEGIES,  # noqa: F401
    )
    from ludus.games.builtin.skirmish_view import (
        X as SKIRMISH_X,  # noqa: F401
        Y as SKIRMISH_Y,  # noqa: F401
    )
    from ludus.games.builtin.tic_tac_toe import (
        CELLS as TIC_TAC_TOE_CELLS,  # noqa: F401
        LINES as TIC_TAC_TOE_LINES,  # noqa: F401
        TicTacToe as TicTacToe,
    )
    from ludus.games.catalog import list_games as list_games, resolve as resolve
    from ludus.games.environments import Environment as Environment
    from ludus.games.game import (
        Bot as Bot,
        Game as Game,
        GameBatch as GameBatch,
        GameSource as GameSource,
        TableView as TableView,
        Turn as Turn,
        allocate_actions as allocate_actions,
    )
    from ludus.games.isolation.isolated import Isolated as Isolated, Isolation as Isolation, isolate as isolate
    from ludus.games.lift import BatchSource as BatchSource, Lifted as Lifted
    from ludus.games.outside_bots import WithBots as WithBots
    from ludus.games.recording import (
        RecordedGame as RecordedGame,
        RecordedTables as RecordedTables,
        game_version as game_version,
    )
    from ludus.games.remote.client import GameClient as GameClient
    from ludus.games.remote.messages import Camp as Camp, MatchConfig as MatchConfig
    from ludus.games.remote.source import Remote as Remote
    from ludus.games.search import AlphaBetaBot as AlphaBetaBot, PerfectBot as PerfectBot, UctBot as UctBot
    from ludus.games.seat_groups import SeatGroups as SeatGroups, policy_of_seat as policy_of_seat
    from ludus.games.strategies import WithStrategies as WithStrategies
    from ludus.games.table import Table as Table

__getattr__, __dir__, __all__ = lazy("games")
__doc__ = f"{__doc__}{listing('games')}\n"

"""The public names of `ludus.games`."""

# Also in `ludus`
from ludus.games.game import Game  # Interface of one table in plain Python.
from ludus.games.game import Turn  # What a table shows after `reset` or `step`.
from ludus.data.specs import GameSpec  # The fixed facts of a game: seats, teams, observations, actions.
from ludus.data.specs import SeatKind  # What the seats of one kind see and do.
from ludus.data.specs import ObservationSpec  # The named parts that a seat sees.
from ludus.data.specs import ActionSpec  # The heads of an action, in order.
from ludus.data.specs import Vector  # Part of an observation: a fixed number of scalars.
from ludus.data.specs import Planes  # Part of an observation: channels x height x width.
from ludus.data.specs import Entities  # Part of an observation: a list of things with features.
from ludus.data.specs import Choice  # Head of an action: one of several options.
from ludus.data.specs import Pointer  # Head of an action: rows of an Entities part.
from ludus.data.specs import Point  # Head of an action: a place on a map.
from ludus.data.specs import Box  # Head of an action: real numbers within bounds.
from ludus.games.lift import Lifted  # Many tables of a plain Python game.
from ludus.games.game import GameBatch  # Interface of many tables stepped together.
from ludus.games.game import GameSource  # Interface of what an experiment names as its game.
from ludus.games.game import Bot  # Interface of a scripted player.
from ludus.games.bots import RandomBot  # Takes every legal action with the same probability.
from ludus.games.isolation.isolated import Isolation  # Plays a game in processes of its own, within limits.

# More
from ludus.data.specs import When  # The condition under which a head of an action counts.
from ludus.data.specs import ArraySpec  # Shape and dtype of one array.
from ludus.games.game import Yardstick  # Positions and bots that a game measures a player by.
from ludus.games.game import PositionSet  # Positions with the exact outcome of every move.
from ludus.games.game import TableView  # The arrays of a GameBatch.
from ludus.games.game import allocate_actions  # Arrays for the actions of all tables.
from ludus.games.tables import Table  # One table of any game, with the plain interface of a Game.
from ludus.games.bots import StrategyBot  # A scripted player given by action probabilities.
from ludus.games.bots import Rows  # What the seats that a bot plays see and may do, one row each.
from ludus.games.bots import require_within_bounds  # Refuses a number that is NaN or beyond the bounds of its `Box`.
from ludus.data.trees import Tree  # A dict of numpy arrays with the same leading axes.
from ludus.data.trees import IntArray  # A numpy array of 64-bit integers.
from ludus.data.trees import allocate  # Zeroed arrays for a mapping of ArraySpecs.
from ludus.data.game_tree import TreeState  # Interface of a position in a game tree.
from ludus.games.search import AlphaBetaBot  # Looks a number of plies ahead.
from ludus.games.search import PerfectBot  # Searches a small game to its end.
from ludus.games.search import UctBot  # Monte Carlo tree search.
from ludus.games.bots import HostedBot  # A scripted player that acts where the tables are.
from ludus.games.device.tensor_game import TensorBots  # Base of scripted players in torch.
from ludus.games.device.tensor_game import TensorGame  # Base of a game in torch, whose tables can live on a GPU.
from ludus.games.device.tensor_game import TensorTwin  # Base of a tensor game that plays as another game does.
from ludus.games.device.tensor_game import TensorStep  # What a step of a tensor game gives.
from ludus.games.device.tensor_game import TensorState  # The state of tables on a device: name to tensor.
from ludus.games.device.tree_game import TensorTree  # A tensor game by look-up in a small game tree.
from ludus.games.catalog import resolve  # The game at an address.
from ludus.games.catalog import list_games  # The games that can be named here.
from ludus.games.isolation.isolated import isolate  # A game in processes of its own.
from ludus.games.isolation.isolated import Isolated  # The game at an address, in processes of its own.
from ludus.games.remote.source import Remote  # A game whose tables are on a game server.
from ludus.games.remote.engine import Engine  # A game in an engine such as Godot, which Ludus starts.
from ludus.games.remote.client import GameClient  # A connection to a game server.
from ludus.games.remote.messages import MatchConfig  # The teams of a match on a game server.
from ludus.games.remote.messages import Camp  # One team of a match on a game server.
from ludus.games.lift import BatchSource  # A game from its `GameBatch` class.
from ludus.games.outside_bots import WithBots  # A game with further scripted players.
from ludus.games.strategies import WithStrategies  # A game whose seats are told a strategy to follow.
from ludus.games.seat_groups import SeatGroups  # A game with one kind of seat for each policy.
from ludus.games.seat_groups import policy_of_seat  # Which policy of its player acts for each seat.
from ludus.games.recording import RecordedGame  # A game at tables that record.
from ludus.games.recording import RecordedTables  # Tables that record every episode.
from ludus.games.recording import game_version  # A digest of the code of a game.
from ludus.games.environments import Environment  # The Python environment of a game library.
from ludus.data.replay import SeatPlayer  # The player of a seat in a replay.
from ludus.data.replay import DecodedReplay  # What was taken from one replay.
from ludus.data.replay import Episode  # One seat's part in one recorded game.
from ludus.data.replay import EpisodeFacts  # Facts of an episode without its observations.
from ludus.data.replay import column_specs  # The columns of a dataset.
from ludus.games.builtin.beacon import Beacon  # Built in: one unit walks to beacons.
from ludus.games.builtin.blotto import Blotto  # Built in: Colonel Blotto.
from ludus.games.builtin.connect_four import ConnectFour  # Built in: connect four.
from ludus.games.builtin.goofspiel import Goofspiel  # Built in: goofspiel.
from ludus.games.builtin.hills import Hills  # Built in: two teams of two fight over hills.
from ludus.games.builtin.kuhn import Kuhn  # Built in: Kuhn poker.
from ludus.games.builtin.leduc import Leduc  # Built in: Leduc poker.
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors  # Built in: rock, paper, scissors.
from ludus.games.builtin.siege import Siege  # Built in: an asymmetric game of attacker and defender.
from ludus.games.builtin.skirmish import Skirmish  # Built in: a small real-time strategy game.
from ludus.games.builtin.sumo import Sumo  # Built in: two discs push each other, with real numbers as actions.
from ludus.games.builtin.tic_tac_toe import TicTacToe  # Built in: tic-tac-toe.
from ludus.games.builtin.tic_tac_toe import CELLS as TIC_TAC_TOE_CELLS  # Number of cells of tic-tac-toe.
from ludus.games.builtin.tic_tac_toe import LINES as TIC_TAC_TOE_LINES  # The winning lines of tic-tac-toe.
from ludus.games.builtin.skirmish_bots import STRATEGIES as SKIRMISH_STRATEGIES  # Scripted strategies of Skirmish by name.
from ludus.games.builtin.skirmish_bots import HERO_STRATEGIES as SKIRMISH_HERO_STRATEGIES  # Hero strategies by name.
from ludus.games.builtin.skirmish_view import X as SKIRMISH_X  # The entity feature of Skirmish that holds x.
from ludus.games.builtin.skirmish_view import Y as SKIRMISH_Y  # The entity feature of Skirmish that holds y.
from ludus.games.adapters.openspiel import OpenSpiel  # A game of OpenSpiel.
from ludus.games.adapters.pgx import Pgx  # A game of Pgx.
from ludus.games.adapters.pettingzoo import PettingZoo  # An environment of PettingZoo.
from ludus.games.adapters.pettingzoo_atari import MultiAtari  # An Atari game for several players.
from ludus.games.adapters.gymnasium import Gymnasium  # An environment of Gymnasium.
from ludus.games.adapters.gymnasium_tables import OldGym  # An environment of the older gym.
from ludus.games.adapters.atari import Atari  # An Atari game for one player.
from ludus.games.adapters.slimevolley import SlimeVolley  # SlimeVolley.
from ludus.games.adapters.pysc2 import PySC2  # A map of StarCraft II.
from ludus.games.adapters.pysc2 import Computer  # A computer player of StarCraft II.
from ludus.games.adapters.pysc2 import UNIT_X as PYSC2_UNIT_X  # The entity feature of PySC2 that holds x.
from ludus.games.adapters.pysc2 import UNIT_Y as PYSC2_UNIT_Y  # The entity feature of PySC2 that holds y.
from ludus.games.adapters.microrts import MicroRTS  # MicroRTS.
from ludus.games.adapters.football import Football  # Google Research Football.
from ludus.games.adapters.vizdoom import ViZDoom  # A scenario of ViZDoom.
from ludus.games.adapters.fightingice import FightingICE  # FightingICE.
from ludus.games.adapters.fightingice import COMMANDS as FIGHTINGICE_COMMANDS  # Its commands by number.
from ludus.games.adapters.gamecore import Gamecore  # A battle of heroes played by a gamecore server.
from ludus.games.adapters.gamecore_client import Hero  # A hero of a gamecore battle.
from ludus.games.adapters.gamecore_client import CampAddress  # Where a gamecore server finds the program of a camp.

__all__ = [
    "FIGHTINGICE_COMMANDS",
    "PYSC2_UNIT_X",
    "PYSC2_UNIT_Y",
    "SKIRMISH_HERO_STRATEGIES",
    "SKIRMISH_STRATEGIES",
    "SKIRMISH_X",
    "SKIRMISH_Y",
    "TIC_TAC_TOE_CELLS",
    "TIC_TAC_TOE_LINES",
    "ActionSpec",
    "AlphaBetaBot",
    "ArraySpec",
    "Atari",
    "BatchSource",
    "Beacon",
    "Blotto",
    "Bot",
    "Box",
    "Camp",
    "CampAddress",
    "Choice",
    "Computer",
    "ConnectFour",
    "DecodedReplay",
    "Engine",
    "Entities",
    "Environment",
    "Episode",
    "EpisodeFacts",
    "FightingICE",
    "Football",
    "Game",
    "GameBatch",
    "GameClient",
    "GameSource",
    "GameSpec",
    "Gamecore",
    "Goofspiel",
    "Gymnasium",
    "Hero",
    "Hills",
    "HostedBot",
    "IntArray",
    "Isolated",
    "Isolation",
    "Kuhn",
    "Leduc",
    "Lifted",
    "MatchConfig",
    "MicroRTS",
    "MultiAtari",
    "ObservationSpec",
    "OldGym",
    "OpenSpiel",
    "PerfectBot",
    "PettingZoo",
    "Pgx",
    "Planes",
    "Point",
    "Pointer",
    "PositionSet",
    "PySC2",
    "RandomBot",
    "RecordedGame",
    "RecordedTables",
    "Remote",
    "RockPaperScissors",
    "Rows",
    "SeatGroups",
    "SeatKind",
    "SeatPlayer",
    "Siege",
    "Skirmish",
    "SlimeVolley",
    "StrategyBot",
    "Sumo",
    "Table",
    "TableView",
    "TensorBots",
    "TensorGame",
    "TensorState",
    "TensorStep",
    "TensorTree",
    "TensorTwin",
    "TicTacToe",
    "Tree",
    "TreeState",
    "Turn",
    "UctBot",
    "Vector",
    "ViZDoom",
    "When",
    "WithBots",
    "WithStrategies",
    "Yardstick",
    "allocate",
    "allocate_actions",
    "column_specs",
    "game_version",
    "isolate",
    "list_games",
    "policy_of_seat",
    "require_within_bounds",
    "resolve",
]  # fmt: skip

"""The public names of `ludus`: for type checkers, for `ludus.public_names`, which loads them lazily, and for `help(ludus)`."""

from ludus import algorithms, games, league, models

__version__: str

# Runs, agents and settings
from ludus.training import train  # Train a league and return its Run.
from ludus.run import Run  # A run folder: league, evaluation, exploitability, report.
from ludus.study import Study  # One experiment under several settings and seeds.
from ludus.agent import load_agent  # A player of a run, or an exported file, as an agent for your own loop.
from ludus.agent import Agent  # Plays any seat of its game from plain observations.
from ludus.games.check import check_game  # Play a game and check every promise of its interface.
from ludus.training import load_experiment  # The experiment of a run, a recipe or a file.
from ludus.data.addresses import load_address  # The object at FILE.py:NAME or PACKAGE.MODULE:NAME.
from ludus.config import apply_overrides  # A copy of an experiment with other settings, by path.
from ludus.config import paths as list_settings  # Every setting of an experiment with its type, value and meaning.
from ludus.config import diff  # The settings in which two experiments differ.
from ludus.config import encode  # An experiment as plain JSON values.
from ludus.config import decode  # The experiment that `encode` was given.
from ludus.config import ConfigError  # A setting that does not exist or does not fit.
from ludus.games.seat_rows import GameError  # A game gave what its interface does not allow.
from ludus.store.files import StoreError  # A run folder, ledger or model that cannot be used.
from ludus.evaluation.play.replays import replay_document  # A replay as the web pages show it.
from ludus.runtime.assemble import new_league  # The league of an experiment before its first event.

# Experiments
from ludus.experiment import Experiment  # Everything that decides what a run does.
from ludus.workers.actor import ActorConfig  # How an actor plays and cuts play into trajectories.
from ludus.workers.config import LearnerConfig  # How batches become updates.
from ludus.league.rules import EvaluationConfig  # What every new snapshot is measured against.
from ludus.workers.config import Supervision  # What happens when workers fail.
from ludus.workers.config import DeviceConfig  # How `--runtime device` computes.
from ludus.workers.config import Openings  # Training episodes that start after random moves.
from ludus.experiment import ClusterConfig  # The nodes of a Ray cluster.
from ludus.store.model_storage import ModelStorage  # Where models are kept besides the run folder.
from ludus.data.schedules import Linear  # A number that changes in a straight line over the budget.
from ludus.data.schedules import Exponential  # A number that changes by a constant factor over the budget.
from ludus.data.schedules import Warmup  # A schedule that rises from 0 first.
from ludus.workers.worker import Middleware  # User code around every step of every worker.
from ludus.workers.worker import Worker  # An actor, a learner or a controller, as middleware sees it.
from ludus.workers.worker import Progress  # What one step of a worker got done.
from ludus.workers.worker import StopTraining  # Raised by middleware to end a run in good order.
from ludus.runtime.ray.loopback import LoopbackCluster  # A Ray cluster of several nodes on this machine, for tests.

# Games
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

# Leagues
from ludus.league.rules import LeagueRules  # The settings of a league: roles, bots, payoff.
from ludus.league.rules import Role  # What a number of learning players have in common.
from ludus.league.matchmaking import Matchmaker  # Interface of a rule that chooses opponents.
from ludus.league.matchmaking import SelfPlay  # Opponents: the player's own latest weights.
from ludus.league.matchmaking import PFSP  # Opponents: snapshots by how the player does against them.
from ludus.league.matchmaking import UniformPast  # Opponents: every snapshot alike.
from ludus.league.matchmaking import Mixture  # Opponents: one of several rules at random.
from ludus.league.psro import MetaStrategy  # Opponents: the meta-strategy of all snapshots (PSRO).
from ludus.league.matchmaking import Candidates  # The players that a rule may choose from.
from ludus.league.payoff import Payoff  # Win rates and scores between players, from results.
from ludus.league.promotion import BySteps  # A snapshot every so many decisions.
from ludus.league.promotion import ByUpdates  # A snapshot every so many updates.
from ludus.league.promotion import ByTime  # A snapshot every so many seconds of training.
from ludus.league.promotion import ByWinRate  # A snapshot once opponents are beaten often enough.
from ludus.league.promotion import ByScore  # A snapshot when the mean score has grown.
from ludus.league.population import Population  # Population-based training of a role's settings.

# Networks
from ludus.models.network_policy import ActorCritic  # Encoders, trunk, optional memory, heads and a critic.
from ludus.models.fully_conv import FullyConv  # A convolutional network for maps.
from ludus.models.alphastar import AlphaStar  # AlphaStar's network, in several sizes.
from ludus.models.module_policy import ModulePolicy  # A policy from a plain `nn.Module`.
from ludus.models.policy import Policy  # Interface from observations to actions.

# Algorithms
from ludus.algorithms.algorithm import Algorithm  # Interface of what turns a batch into a loss.
from ludus.algorithms.algorithm import Loss  # A scalar to minimise and its statistics.
from ludus.data.batch import Batch  # Trajectories stacked [T+1, B].
from ludus.algorithms.ppo import PPO  # Proximal policy optimisation.
from ludus.algorithms.actor_critic import A2C  # Advantage actor-critic.
from ludus.algorithms.actor_critic import Impala  # V-trace actor-critic.
from ludus.algorithms.magnet import MagnetPolicyGradient  # Policy gradient held near a slowly moving magnet.
from ludus.algorithms.alphastar import AlphaStarGradient  # AlphaStar's TD(lambda), V-trace and UPGO.

# Services
from ludus.services.resources import UserService  # A class whose methods run in processes of their own.
from ludus.services.endpoints import service  # Marks a method that other processes may call.
from ludus.services.solver import Solver  # Calls a service by its name.
from ludus.services.topics import Publisher  # Sends messages to every subscriber of a topic.
from ludus.services.topics import Subscriber  # Receives the messages of a topic.
from ludus.services.resources import Resources  # What one process of a service needs.
from ludus.services.endpoints import ServiceError  # A call of a service that failed.
from ludus.services.host import serving  # Runs services outside of a training.
from ludus.runtime.services import ServedModels  # Models of a run, fetched from its model service.

# Metrics
from ludus.observe.sinks import TensorBoard  # Writes metrics as TensorBoard event files.
from ludus.observe.sinks import Prometheus  # Serves the newest metrics to Prometheus.
from ludus.observe.sinks import WandB  # Sends metrics to Weights & Biases.
from ludus.observe.metrics import CSV  # Writes metrics as a CSV table.
from ludus.observe.metrics import MetricsOutput  # Interface of a place that metrics go to.

# Replays and datasets
from ludus.data.replay import Replay  # A recorded game.
from ludus.replays.dataset import ReplayDataset  # Episodes of replays on disk, read as batches.
from ludus.data.replay import EpisodeFilter  # Which episodes of which replays a dataset is made from.
from ludus.replays.dataset_writer import write_dataset  # Write episodes into a dataset folder.
from ludus.replays.conversion import convert as convert_replays  # Make a dataset from replays.

__all__ = [
    "A2C",
    "CSV",
    "PFSP",
    "PPO",
    "ActionSpec",
    "ActorConfig",
    "ActorCritic",
    "Agent",
    "Algorithm",
    "AlphaStar",
    "AlphaStarGradient",
    "Batch",
    "Bot",
    "Box",
    "ByScore",
    "BySteps",
    "ByTime",
    "ByUpdates",
    "ByWinRate",
    "Candidates",
    "Choice",
    "ClusterConfig",
    "ConfigError",
    "DeviceConfig",
    "Entities",
    "EpisodeFilter",
    "EvaluationConfig",
    "Experiment",
    "Exponential",
    "FullyConv",
    "Game",
    "GameBatch",
    "GameError",
    "GameSource",
    "GameSpec",
    "Impala",
    "Isolation",
    "LeagueRules",
    "LearnerConfig",
    "Lifted",
    "Linear",
    "LoopbackCluster",
    "Loss",
    "MagnetPolicyGradient",
    "Matchmaker",
    "MetaStrategy",
    "MetricsOutput",
    "Middleware",
    "Mixture",
    "ModelStorage",
    "ModulePolicy",
    "ObservationSpec",
    "Openings",
    "Payoff",
    "Planes",
    "Point",
    "Pointer",
    "Policy",
    "Population",
    "Progress",
    "Prometheus",
    "Publisher",
    "RandomBot",
    "Replay",
    "ReplayDataset",
    "Resources",
    "Role",
    "Run",
    "SeatKind",
    "SelfPlay",
    "ServedModels",
    "ServiceError",
    "Solver",
    "StopTraining",
    "StoreError",
    "Study",
    "Subscriber",
    "Supervision",
    "TensorBoard",
    "Turn",
    "UniformPast",
    "UserService",
    "Vector",
    "WandB",
    "Warmup",
    "Worker",
    "algorithms",
    "apply_overrides",
    "check_game",
    "convert_replays",
    "decode",
    "diff",
    "encode",
    "games",
    "league",
    "list_settings",
    "load_address",
    "load_agent",
    "load_experiment",
    "models",
    "new_league",
    "replay_document",
    "service",
    "serving",
    "train",
    "write_dataset",
]  # fmt: skip

"""Ludus trains leagues of agents for competitive games.

    import ludus

    run = ludus.train("connect_four", budget=2e6)      # a recipe, a game, an Experiment or FILE.py:NAME
    run = ludus.Run("runs/connect_four-001")           # an existing run; reading it executes nothing
    print(run.league())
    run.evaluate("main@best", "alpha_beta_2", games=512)

    agent = ludus.load_agent(run, "main@best")
    action = agent.act(observation, legal)

Further names are in `ludus.games`, `ludus.league`, `ludus.models` and `ludus.algorithms`. Every name is
loaded when it is first used. Training and agents need PyTorch; games, leagues and reading a run do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.public_names import lazy, listing
from ludus.system.machine import installed_version

if TYPE_CHECKING:
    from ludus.agent import Agent as Agent, load_agent as load_agent
    from ludus.algorithms.actor_critic import A2C as A2C, Impala as Impala
    from ludus.algorithms.algorithm import Algorithm as Algorithm, Loss as Loss
    from ludus.algorithms.alphastar import AlphaStarGradient as AlphaStarGradient
    from ludus.algorithms.magnet import MagnetPolicyGradient as MagnetPolicyGradient
    from ludus.algorithms.ppo import PPO as PPO
    from ludus.config import (
        ConfigError as ConfigError,
        apply_overrides as apply_overrides,
        decode as decode,
        diff as diff,
        encode as encode,
        paths as list_settings,  # noqa: F401
    )
    from ludus.data.addresses import load_address as load_address
    from ludus.data.batch import Batch as Batch
    from ludus.data.replay import EpisodeFilter as EpisodeFilter, Replay as Replay
    from ludus.data.schedules import Exponential as Exponential, Linear as Linear
    from ludus.data.specs import (
        ActionSpec as ActionSpec,
        Choice as Choice,
        Entities as Entities,
        GameSpec as GameSpec,
        ObservationSpec as ObservationSpec,
        Planes as Planes,
        Point as Point,
        Pointer as Pointer,
        SeatKind as SeatKind,
        Vector as Vector,
    )
    from ludus.evaluation.play.replays import replay_document as replay_document
    from ludus.experiment import ClusterConfig as ClusterConfig, Experiment as Experiment
    from ludus.games.bots import RandomBot as RandomBot
    from ludus.games.check import check_game as check_game
    from ludus.games.game import (
        Bot as Bot,
        Game as Game,
        GameBatch as GameBatch,
        GameSource as GameSource,
        Turn as Turn,
    )
    from ludus.games.isolation.isolated import Isolation as Isolation
    from ludus.games.lift import Lifted as Lifted
    from ludus.games.seat_rows import GameError as GameError
    from ludus.league.matchmaking import (
        PFSP as PFSP,
        Candidates as Candidates,
        Matchmaker as Matchmaker,
        Mixture as Mixture,
        SelfPlay as SelfPlay,
        UniformPast as UniformPast,
    )
    from ludus.league.payoff import Payoff as Payoff
    from ludus.league.population import Population as Population
    from ludus.league.promotion import ByScore as ByScore, BySteps as BySteps, ByWinRate as ByWinRate
    from ludus.league.psro import MetaStrategy as MetaStrategy
    from ludus.league.rules import (
        EvaluationConfig as EvaluationConfig,
        LeagueRules as LeagueRules,
        Role as Role,
    )
    from ludus.models.alphastar import AlphaStar as AlphaStar
    from ludus.models.fully_conv import FullyConv as FullyConv
    from ludus.models.module_policy import ModulePolicy as ModulePolicy
    from ludus.models.network_policy import ActorCritic as ActorCritic
    from ludus.models.policy import Policy as Policy
    from ludus.observe.metrics import CSV as CSV, MetricsOutput as MetricsOutput
    from ludus.observe.sinks import Prometheus as Prometheus, TensorBoard as TensorBoard, WandB as WandB
    from ludus.replays.conversion import convert as convert_replays  # noqa: F401
    from ludus.replays.dataset import ReplayDataset as ReplayDataset
    from ludus.replays.dataset_writer import write_dataset as write_dataset
    from ludus.run import Run as Run
    from ludus.runtime.assemble import new_league as new_league
    from ludus.runtime.ray.loopback import LoopbackCluster as LoopbackCluster
    from ludus.runtime.services import ServedModels as ServedModels
    from ludus.services.endpoints import ServiceError as ServiceError, service as service
    from ludus.services.host import serving as serving
    from ludus.services.resources import Resources as Resources, UserService as UserService
    from ludus.services.solver import Solver as Solver
    from ludus.services.topics import Publisher as Publisher, Subscriber as Subscriber
    from ludus.store.files import StoreError as StoreError
    from ludus.store.model_storage import ModelStorage as ModelStorage
    from ludus.training import load_experiment as load_experiment, train as train
    from ludus.workers.actor import ActorConfig as ActorConfig
    from ludus.workers.config import LearnerConfig as LearnerConfig, Supervision as Supervision
    from ludus.workers.worker import (
        Middleware as Middleware,
        Progress as Progress,
        StopTraining as StopTraining,
        Worker as Worker,
    )

__getattr__, __dir__, __all__ = lazy()
__version__ = installed_version()
__doc__ = f"{__doc__}{listing()}\n"

"""The typed tree that describes a run. Recipes and users' own files build one; `ludus train` runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.ppo import PPO
from ludus.games.game import GameSource
from ludus.league.matchmaking import SelfPlay
from ludus.league.promotion import BySteps
from ludus.league.rules import LeagueRules, Role
from ludus.models.networks import ActorCritic
from ludus.models.policy import ModelConfig
from ludus.runtime.program import Middleware
from ludus.runtime.supervision import Supervision
from ludus.workers.actor import ActorConfig
from ludus.workers.evaluator import EvaluationConfig
from ludus.workers.trained_player import LearnerConfig

Runtime = Literal["serial", "local"]


def _main_only() -> LeagueRules:
    return LeagueRules(
        roles={"main": Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000_000))}, bots=("random",)
    )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run does."""

    name: str
    game: GameSource
    budget: int
    """Decisions that the learning players train on, all together. Schedules run over it."""
    model: ModelConfig = field(default_factory=ActorCritic)
    algorithm: Algorithm = field(default_factory=PPO)
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    league: LeagueRules = field(default_factory=_main_only)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    middleware: tuple[Middleware, ...] = ()
    """Called around every step of every worker, the first one outermost."""
    checkpoint_every: int = 1_000_000
    """Decisions between two checkpoints."""
    runtime: Runtime = "local"
    """Where the workers run: as processes of this machine, or in one that can be repeated exactly."""
    supervision: Supervision = field(default_factory=Supervision)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("budget", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")
        if self.runtime not in get_args(Runtime):
            raise ValueError(f"runtime must be one of {', '.join(get_args(Runtime))}, got {self.runtime!r}")
        if isinstance(self.game, type) or not isinstance(self.game, GameSource):
            raise ValueError(
                f"game must be a game such as Kuhn(), or Lifted(YourGame) for a plain Game, got {self.game!r}"
            )
        teams = self.game.spec.num_teams
        if self.actor.episodes_per_table % teams:
            raise ValueError(
                f"actor.episodes_per_table ({self.actor.episodes_per_table}) must be a multiple of the "
                f"{teams} teams of {self.game.spec.name}, so that every side sits on every team equally often"
            )
        if self.actor.num_tables % self.actor.matches:
            raise ValueError(
                f"actor.num_tables ({self.actor.num_tables}) must be a multiple of actor.matches "
                f"({self.actor.matches}), so that every match gets an equal block of tables"
            )
        bots = self.game.bots()
        for place, names in (
            ("league.bots", self.league.bots),
            ("evaluation.opponents", self.evaluation.opponents),
        ):
            for bot in names:
                if bot not in bots:
                    raise ValueError(
                        f"{place}: {self.game.spec.name} has no bot {bot!r}; it has {', '.join(sorted(bots))}"
                    )

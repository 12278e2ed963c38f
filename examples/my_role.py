"""Your own roles: three more kinds of exploiter, as other leagues have them.

    ludus train examples/my_role.py:experiment

A role is data: the number of players, their opponents, when they are frozen, and whether they then restart.
Most kinds of exploiter differ only in the model that they restart *from*, and that is one small class:

* adaptive-evolutionary: from its own snapshot that is nearly, but not quite, as good as the main player;
* expert: from the newest snapshot of the main player;
* cyclic: three lineages in turn, each continuing from its own latest snapshot.

    ludus train examples/my_role.py:small_exploiter

A role may also have its own model, algorithm and learner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ludus import (
    PFSP,
    PPO,
    ActorConfig,
    ActorCritic,
    BySteps,
    ByWinRate,
    Candidates,
    EvaluationConfig,
    Experiment,
    Impala,
    LeagueRules,
    LearnerConfig,
    Matchmaker,
    Mixture,
    Payoff,
    Role,
    SelfPlay,
)
from ludus.games import TicTacToe
from ludus.league import FromStart, LiveOrPast, Restart, Standing


def model_of(snapshot: str, candidates: Candidates) -> str | None:
    return next(player.model for player in candidates.players if player.id == snapshot)


@dataclass(frozen=True, kw_only=True, slots=True)
class NearlyAsGood(Restart):
    """The best of its snapshots whose win rate against the main player is in a range; else its first model."""

    main: str = "main"
    lowest: float = 0.2
    highest: float = 0.5

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        met = [s for s in candidates.history_of(standing.player.id) if payoff.games(s, self.main)]
        win_rates = {snapshot: payoff.win_rate(snapshot, self.main) for snapshot in met}
        fitting = [snapshot for snapshot in met if self.lowest <= win_rates[snapshot] <= self.highest]
        if not fitting:
            return standing.player.model
        return model_of(max(fitting, key=lambda snapshot: win_rates[snapshot]), candidates)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewestOf(Restart):
    """The newest snapshot of a role."""

    role: str = "main"

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        past = candidates.history_of_role(self.role)
        return model_of(past[-1], candidates) if past else standing.player.model


@dataclass(frozen=True, kw_only=True, slots=True)
class InTurn(Restart):
    """Several lineages in turn: each continues from its latest snapshot, or begins."""

    lines: int = 3

    def model(self, standing: Standing, candidates: Candidates, payoff: Payoff) -> str | None:
        own = candidates.history_of(standing.player.id)
        return model_of(own[-self.lines], candidates) if len(own) >= self.lines else standing.player.model


def exploiter(restart: Restart, matchmaking: Matchmaker) -> Role:
    """A role that is frozen when it beats the main player or after a time limit, and then always restarts."""
    return Role(
        matchmaking=matchmaking,
        promotion=ByWinRate(min_decisions=1_000, max_decisions=2_000, against="main"),
        initial_snapshot=False,
        reset_probability=1.0,
        restart=restart,
    )


def experiment() -> Experiment:
    attack = LiveOrPast(role="main", min_win_rate=0.1)
    main = Role(matchmaking=Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP()))), promotion=BySteps(every=2_000))
    roles = {
        "main": main,
        "adaptive": exploiter(NearlyAsGood(), attack),
        "expert": exploiter(NewestOf(), PFSP(weighting="linear_capped")),
        "cyclic": exploiter(InTurn(), attack),
    }
    return Experiment(
        name="my_role",
        game=TicTacToe(),
        budget=32_000,
        actor=ActorConfig(num_tables=128),
        learner=LearnerConfig(batch_size=512, minibatch_size=512, epochs=1, learning_rate=2e-3),
        # The choice of a restart also uses matches of main against the snapshots of the others.
        league=LeagueRules(roles=roles, decide_on="combined"),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=128),
    )


def small_exploiter() -> Experiment:
    """A large main player that learns by V-trace, and a small exploiter that learns by PPO on smaller batches."""
    learner = LearnerConfig(batch_size=512, minibatch_size=512, epochs=1, learning_rate=1e-3)
    main = Role(matchmaking=Mixture(branches=((0.5, SelfPlay()), (0.5, PFSP()))), promotion=BySteps(every=4_000))
    small = replace(
        exploiter(FromStart(), LiveOrPast(role="main", min_win_rate=0.1)),  # weights of main would not fit its network
        model=ActorCritic(hidden=(32,)),
        algorithm=PPO(),
        learner=replace(learner, batch_size=256, minibatch_size=128, epochs=2, learning_rate=3e-3),
    )
    return Experiment(
        name="small_exploiter",
        game=TicTacToe(),
        budget=32_000,
        model=ActorCritic(hidden=(256, 256)),
        algorithm=Impala(),
        actor=ActorConfig(num_tables=128),
        learner=learner,
        league=LeagueRules(roles={"main": main, "small": small}),
        evaluation=EvaluationConfig(opponents=("random",), past=1, episodes=128),
    )

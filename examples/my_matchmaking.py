"""Your own matchmaking rule: every match is against the opponent that beats the player most.

    ludus train examples/my_matchmaking.py:experiment

At first this is the script `rules`, which wins and blocks where it can and takes nineteen points in twenty.
After 20,000 decisions, within ten seconds on one core, the player holds it to a draw in nearly every game.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus import (
    ActorConfig,
    BySteps,
    Candidates,
    EvaluationConfig,
    Experiment,
    LeagueRules,
    LearnerConfig,
    Matchmaker,
    Payoff,
    Role,
)
from ludus.games import TicTacToe
from ludus.league import Law, uniform


@dataclass(frozen=True, kw_only=True, slots=True)
class Nemesis(Matchmaker):
    """Draws uniformly from the snapshots and scripted players at the player's lowest win rate."""

    margin: float = 0.02
    """Win rates this close to the lowest count as lowest, because a few games more or less are chance."""

    def probabilities(self, player: str, candidates: Candidates, payoff: Payoff) -> Law:
        """The distribution over opponents. The league draws from it, so a rule needs no randomness."""
        pool = candidates.past("all_frozen", player, include_scripted=True)
        win_rates = dict(zip(pool, payoff.win_rates(player, pool), strict=True))
        lowest = min(win_rates.values(), default=0.0)
        worst = [other for other, rate in win_rates.items() if rate <= lowest + self.margin]
        return uniform(worst, otherwise=player)


def experiment() -> Experiment:
    main = Role(matchmaking=Nemesis(margin=0.02), promotion=BySteps(every=10_000))
    return Experiment(
        name="nemesis",
        game=TicTacToe(),
        budget=30_000,
        actor=ActorConfig(num_tables=128),
        learner=LearnerConfig(batch_size=2_048, minibatch_size=512, epochs=4, learning_rate=2e-3),
        league=LeagueRules(roles={"main": main}, bots=("random", "rules")),
        evaluation=EvaluationConfig(opponents=("random", "rules")),
    )

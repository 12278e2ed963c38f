"""Othello of Pgx on one large GPU by PPO: the network, tables and openings of `othello_search`, without a search, and
many more decisions in the same time. Needs the extra `pgx`."""

from __future__ import annotations

from dataclasses import replace

from ludus import PPO, Experiment, Linear, Warmup
from ludus.recipes import othello_search


def experiment() -> Experiment:
    search = othello_search.experiment()
    return replace(
        search,
        name="othello_ppo",
        budget=150_000_000,
        algorithm=PPO(gamma=1.0, lambda_=0.95, clip=0.2, entropy=Linear(start=0.03, end=0.003)),
        learner=replace(
            search.learner, minibatch_size=8_192, learning_rate=Warmup(then=Linear(start=5e-4, end=3e-5), over=0.02)
        ),
    )

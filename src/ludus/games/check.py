"""The conformance check: plays a game in many ways and reports which of its promises it keeps.

Run it on your own game: `print(check_game(MySource()))`.
"""

from __future__ import annotations

import numpy as np

from ludus.data.specs import GameSpec
from ludus.games.checking.bots import check_bots
from ludus.games.checking.episodes import Episode, play_random_episodes, replay
from ludus.games.checking.play import check_shapes
from ludus.games.checking.report import PROMISES, Evidence, Failure, Report, Verdict
from ludus.games.checking.tree import compare_with_tables, walk
from ludus.games.game import GameSource

__all__ = ["PROMISES", "Failure", "Report", "Verdict", "check_game"]

WALKS = 50
"""Random histories walked in the game tree."""
NEIGHBOURS = 2
"""Tables beside those of episodes that are played again."""


def check_game(
    source: GameSource,
    *,
    episodes: int = 64,
    tables: int = 4,
    seed: int = 0,
    max_steps: int = 1_000,
    bot_seconds: float = 2.0,
) -> Report:
    """Whether a game keeps its promises; raises nothing, an error of the game is a failure too.

    Plays `episodes` random episodes at `tables` tables (at most `max_steps` steps), some of them again at
    other tables, then each bot for one episode per table or about `bot_seconds`.
    """
    evidence = Evidence()
    name = type(source).__name__
    with evidence.calls("spec"):
        name = source.spec.name
        if _check_spec(source, evidence, tables):
            _check_play(source, evidence, np.random.default_rng(seed), episodes, tables, max_steps)
            _check_rest(source, evidence, np.random.default_rng(seed), tables, bot_seconds)
    return evidence.report(name)


def most_tables(source: GameSource, tables: int) -> int:
    """How many are open at the same time in a check with `tables` tables."""
    return tables + NEIGHBOURS if source.spec.repeatable else max(tables, 2)


def _check_spec(source: GameSource, evidence: Evidence, num_tables: int) -> bool:
    """Whether the game can be played at all."""
    spec = source.spec
    if not evidence.expect("spec", isinstance(spec, GameSpec), "source", 0, f"spec is {spec!r}"):
        return False
    evidence.expect("spec", spec == source.spec, "source", 0, "spec differs from one call to the next")
    names = [kind.name for kind in spec.kinds]
    evidence.expect("spec", len(set(names)) == len(names), "kinds", 0, f"two kinds have one name: {names}")
    for kind in spec.kinds:
        parts = kind.observation.parts
        evidence.expect("spec", bool(parts), f"kind {kind.name!r}", 0, "its observation has no parts")
        num_arrays = sum(
            len(part.arrays(name)) for name, part in [*parts.items(), *kind.observation.critic.items()]
        )
        seen = f"{num_arrays} arrays share the names {sorted(kind.observation.arrays)}"
        evidence.expect("spec", num_arrays == len(kind.observation.arrays), f"kind {kind.name!r}", 0, seen)
    batch = source.tables(num_tables)
    try:
        evidence.expect("spec", batch.spec == spec, "tables", 0, "their spec differs from the source's")
        given = batch.num_tables
        right = evidence.expect("spec", given == num_tables, "tables", 0, f"{given} tables, not {num_tables}")
        return right and check_shapes(batch, evidence)
    finally:
        batch.close()


def _check_play(
    source: GameSource,
    evidence: Evidence,
    rng: np.random.Generator,
    num_episodes: int,
    num_tables: int,
    max_steps: int,
) -> None:
    kept: list[Episode] = []
    with evidence.calls("random play"):
        kept = play_random_episodes(
            source, evidence, rng, num_tables=num_tables, num_episodes=num_episodes, max_steps=max_steps
        )
    if not kept or not source.spec.repeatable:
        return
    here, reverse = range(num_tables), range(num_tables, 0, -1)
    with evidence.calls("replay in a new batch"):
        replay(source, evidence, rng, kept, promise="same_again", places=here, num_tables=num_tables)
    with evidence.calls("replay with random actions for idle seats"):
        replay(
            source,
            evidence,
            rng,
            kept,
            promise="idle_actions",
            places=here,
            num_tables=num_tables,
            noise=True,
        )
    with evidence.calls("replay in another order among neighbours"):
        replay(
            source,
            evidence,
            rng,
            kept,
            promise="same_elsewhere",
            places=reverse,
            num_tables=num_tables + NEIGHBOURS,
        )
    with evidence.calls("replay at a single table"):
        replay(source, evidence, rng, kept[:1], promise="same_elsewhere", places=[0], num_tables=1)


def _check_rest(
    source: GameSource, evidence: Evidence, rng: np.random.Generator, num_tables: int, bot_seconds: float
) -> None:
    with evidence.calls("bots"):
        check_bots(source, evidence, rng, num_tables=num_tables, seconds=bot_seconds)
    with evidence.calls("tree"):
        root = source.tree()
        if root is not None:
            for _ in range(WALKS):
                walk(root, source.spec, evidence, rng, "tree")
    with evidence.calls("tree beside tables"):
        compare_with_tables(source, evidence, rng, num_tables=2, max_steps=WALKS)

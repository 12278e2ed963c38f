"""What holds a run up, from who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping

from ludus.store.run_status import Bottleneck

WAITS_MUCH = 0.25
"""Share of the time from which on a wait says something by itself."""
BOTH_BUSY = 0.05
_NO_WORKER: Mapping[str, float] = {}


def find_bottleneck(
    actors: Mapping[str, float],
    learner: Mapping[str, float],
    buffer: Mapping[str, float] = _NO_WORKER,
    *,
    num_actors: int,
    schedule: str,
    central: bool,
    run: str,
) -> Bottleneck | None:
    """`actors` (mean of all), `learner`, `buffer` (of a buffer worker): shares of their time, by what it went
    into; None: nothing is known. `central`: a policy worker decides for the actors."""
    if not actors or not learner:
        return None
    held, idle = actors["waiting"], learner["waiting"]
    waits = f"actors wait for the learner {held:.0%} of their time, the learner for actors {idle:.0%}"
    recomputing = buffer.get("recomputing", 0.0)
    if recomputing > 1.0 - WAITS_MUCH and idle > BOTH_BUSY:
        return Bottleneck(
            what="buffer",
            why=f"the buffer worker is busy {recomputing:.0%} of its time, and the learner waits {idle:.0%}",
            advice="a larger learner.recompute_lag, a smaller learner.reuse, or learner.buffer_worker=false, "
            "if cores are few",
        )
    if min(held, idle) > WAITS_MUCH:
        advice = (
            "--set learner.schedule=async lets them overlap"
            if schedule == "sync"
            else "a larger learner.max_lag or a smaller learner.batch_size lets them overlap more"
        )
        return Bottleneck(what="buffer", why=f"{waits}: they take turns", advice=advice)
    if held > idle:
        return Bottleneck(
            what="learner",
            why=waits,
            advice="learner.device=cuda, fewer learner.epochs, a larger learner.minibatch_size, or more "
            "learner.ranks; fewer actors would leave it more of the cores",
        )
    if max(held, idle) < BOTH_BUSY:
        waits += ": all are busy, the cores are the limit"
    spent = (
        f"{waits}; actors spend {actors['game']:.0%} in the game and {actors['inference']:.0%} in decisions"
    )
    if actors["game"] > actors["inference"]:
        return Bottleneck(
            what="game",
            why=spent,
            advice=f"`ludus scale {run} actors={num_actors + 1}`, if cores are free; else a faster game",
        )
    return Bottleneck(
        what="inference",
        why=spent,
        advice=f"`ludus scale {run} actors={num_actors + 1}`, if cores are free, or a smaller model"
        if central
        else "more actor.num_tables (larger calls), actor.inference=worker (with a GPU), or a smaller model",
    )

"""Runs that have lost a part of themselves: refused when they are resumed, or, on purpose, continued with the rest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ludus.config import ConfigError
from ludus.data.records import LossAccepted, ModelId
from ludus.data.trees import Tree, under
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.runtime.assemble import CHECKPOINT, learning_players, load_league, seed_of
from ludus.runtime.networks import build_policies
from ludus.runtime.settings import effective
from ludus.store.checkpoints import Checkpoint
from ludus.store.inspection import latest_state, newer_models, note_checkpoint
from ludus.store.ledger import Ledger
from ludus.store.model_pool import ModelPool, ModelPoolError
from ludus.store.run_folder import RunFolder
from ludus.workers.messages import HostedPlayer
from ludus.workers.trained_player import TrainedPlayer

ACCEPT = "--accept-loss"


def require_ledger(folder: RunFolder, *, accept_loss: bool) -> None:
    """Refuse a run whose ledger was removed; if the loss is accepted, begin a new one."""
    if folder.ledger_path.exists():
        return
    if not accept_loss:
        raise ConfigError(
            f"{folder.path}: its ledger is gone: there is no {folder.ledger_path.name}. Restore it from a copy, or let "
            f"a new league begin with the weights of the checkpoint: {_again(folder)}"
        )
    Ledger(folder.ledger_path).close()


def require_whole(folder: RunFolder, experiment: Experiment, *, accept_loss: bool) -> str | None:
    """Refuse a run whose ledger, checkpoint and models do not fit together. If the loss is accepted, make a checkpoint
    from what is left and return what was lost. The caller holds the lock of the run."""
    with folder.ledger() as ledger:
        ledger.check()
        checkpoint, reason = latest_state(ledger, folder.checkpoints(CHECKPOINT))
        with suppress(ModelPoolError):  # players whose models do not read are absent
            reason = reason or newer_models(ledger, folder.models, checkpoint)
        if reason is None:
            return None
        if not accept_loss:
            raise ConfigError(
                f"{folder.path}: {reason}. Restore what is missing from a copy, or go on with what is left, on purpose:"
                f" {_again(folder)} (learning players then go on from their newest weights that can be read)"
            )
        league = load_league(folder, experiment)
        _accept(folder, effective(experiment, league), league, ledger, checkpoint, reason)
    return reason


def _again(folder: RunFolder) -> str:
    return f"ludus train --run {folder.path} --resume {ACCEPT}"


def _accept(
    folder: RunFolder,
    experiment: Experiment,
    league: League,
    ledger: Ledger,
    checkpoint: Checkpoint | None,
    reason: str,
) -> None:
    """Record the loss, and write a checkpoint that fits the ledger: players as the old checkpoint has them, others as
    their newest snapshot. The tables of the old checkpoint are left out: their matches may be unknown now."""
    known: Mapping[str, Any] = {} if checkpoint is None else checkpoint.facts["learner"]
    arrays: Tree = {}
    facts: dict[str, Any] = {}
    models: dict[str, str | None] = {}
    for player, hosted in learning_players(league).items():
        if checkpoint is not None and player in known:
            saved, facts[player] = under(f"learner/{player}/", checkpoint.arrays), dict(known[player])
        else:
            trained, models[player] = _from_snapshot(folder, experiment, league, player, hosted)
            saved, facts[player] = trained.save()
        arrays |= {f"learner/{player}/{name}": array for name, array in saved.items()}
        facts[player]["incarnation"] = new_incarnation(folder.models, league, player, facts[player]["incarnation"])
    ledger.append(
        [LossAccepted(reason, {player: model for player, model in models.items() if player in league.players})]
    )
    row, chain = ledger.position
    checkpoints, decisions = folder.checkpoints(CHECKPOINT), sum(one["decisions"] for one in facts.values())
    checkpoints.save(decisions, arrays, {"learner": facts, "events": row, "chain": chain.hex()})
    note_checkpoint(ledger, checkpoints, row, chain, decisions)


def _from_snapshot(
    folder: RunFolder, experiment: Experiment, league: League, player: str, hosted: HostedPlayer
) -> tuple[TrainedPlayer, str | None]:
    """A learning player as its newest snapshot that can be read, with as many decisions; with fresh weights if there is
    none. A reset since then counts: the player goes on from what it was reset to."""
    view = experiment.of_role(hosted.role)
    seed = seed_of(experiment, hosted)
    here = replace(view.learner, device="cpu")
    trained = TrainedPlayer(player, build_policies(view, seed), view.algorithm, here, seed=seed)
    if hosted.start is not None:  # references that stay fixed are those of the start
        trained.begin_from(folder.models.fetch(ModelId.parse(hosted.start)))
    own = [one for one in league.players.values() if one.parent == player and one.frozen and one.model is not None]
    standing = league.standings.get(player)
    ancestor = hosted.start if standing is None else standing.ancestor
    decisions = {one.model: one.parent_decisions for one in own}
    for model in dict.fromkeys((ancestor, *(one.model for one in reversed(own)))):
        if model is None:
            continue
        try:
            trained.reset(folder.models.fetch(ModelId.parse(model)), incarnation=0)
        except (ModelPoolError, ValueError):
            continue
        trained.decisions = decisions.get(model, 0)
        trained.step = ModelId.parse(model).step
        return trained, model
    return trained, None


def new_incarnation(models: ModelPool, league: League, player: str, last: int = 0) -> int:
    """Above all that were ever used: what the player learns now must not get ids that mean other weights."""
    standing = league.standings.get(player)
    return 1 + max(last, models.last_incarnation(player), 0 if standing is None else standing.incarnation)

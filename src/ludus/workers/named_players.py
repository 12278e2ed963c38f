"""From the name of a player, as people write it, to a model of the run's pool."""

from __future__ import annotations

from ludus.data.records import ModelId
from ludus.league.league import League
from ludus.store.model_pool import ModelPool, UnknownModel, Variant


def is_model_name(text: str) -> bool:
    """Written as a tag or a model: no player has such an id."""
    return "@" in text or ":" in text


def resolve_player(league: League, pool: ModelPool, text: str) -> tuple[ModelId, Variant]:
    """The model meant by `main.3` (a snapshot), `main@best`, `main@latest`, `main` (the newest snapshot) or
    `main:0:12`, and which of its two sets of weights: those that a snapshot pins, else the live ones.

    Raises `UnknownModel` with the nearest name.
    """
    player = league.players.get(text)
    if player is not None and player.scripted:
        raise UnknownModel(f"player {text!r} is a bot and has no model")
    if player is not None and player.frozen and player.model is not None:
        return ModelId.parse(player.model), player.weights
    model = pool.resolve(text)
    pinned = [one.weights for one in league.players.values() if one.frozen and one.model == str(model)]
    return model, pinned[-1] if pinned else "live"

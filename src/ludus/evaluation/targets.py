"""Targets of `ludus exploit`: one player of a run, or the mixture of its frozen players that none of them beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ludus.config import ConfigError
from ludus.data.trees import Tree
from ludus.evaluation.exploitability import NotExactError, exact_game, probabilities
from ludus.experiment import Experiment
from ludus.league.league import League
from ludus.league.summary import equilibrium_of
from ludus.models.policy import join_kinds, weights_of
from ludus.runtime.assemble import load_players
from ludus.store.checkpoints import canonical, content_digest
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import SeatedPlayer, resolve_player

MIXTURE = "mixture"
SharesFrom = Literal["exact scores", "games of the league"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One player of a target."""

    name: str
    seated: SeatedPlayer
    weights: Variant | None
    """The weights that it plays with; None for a bot."""
    share: float = 1.0

    @property
    def arrays(self) -> Tree:
        return join_kinds(self.seated.policies, map(weights_of, self.seated.policies))

    @property
    def digest(self) -> str | None:
        """Digest of its weights, as in the model pool."""
        return None if self.seated.bot is not None else content_digest(canonical(self.arrays))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The opponent of an exploiter. With several members, one is drawn for every match."""

    name: str
    members: tuple[Member, ...]
    shares_from: SharesFrom | None = None


def describe_target(target: Target) -> str:
    if target.shares_from is None:
        return f"target: {_describe(target.members[0])}"
    lines = [f"target: equilibrium mixture of the frozen players, by {target.shares_from}"]
    lines += [f"  {member.share:6.1%}  {_describe(member)}" for member in target.members]
    return "\n".join(lines)


def _describe(member: Member) -> str:
    if member.digest is None:
        return f"{member.name}, scripted"
    return f"{member.name}, {member.weights} weights {member.seated.model_name}, digest {member.digest[:12]}"


def find_player(experiment: Experiment, folder: RunFolder, league: League, name: str, weights: Variant) -> Target:
    """A learning player (with the asked `weights` of its latest checkpoint), a snapshot, a bot, or a model
    of the pool such as `main@best`."""
    (seated,) = load_players(experiment, folder, league, [name], weights=weights).values()
    used: Variant | None = None
    if seated.bot is None:
        used = weights if name in league.standings else resolve_player(league, folder.models, name)[1]
    return Target(name=name, members=(Member(name=name, seated=seated, weights=used),))


def find_mixture(experiment: Experiment, folder: RunFolder, league: League) -> Target:
    """The frozen players by their shares in the equilibrium of their mean scores: exact scores where the
    game tree can be walked and two seats meet, else those of the league's games."""
    frozen = league.candidates.frozen()
    if not frozen:
        raise ConfigError("the league has no frozen player yet, so there is no mixture of them")
    seated = load_players(experiment, folder, league, frozen)
    members = [Member(name=name, seated=seated[name], weights=league.players[name].weights) for name in frozen]
    shares: Sequence[float]
    shares_from: SharesFrom = "exact scores"
    try:
        game = exact_game(experiment)
        if game.tree.num_seats != 2:
            raise NotExactError("more than two seats")
        tables = [probabilities(game, member.name, member.seated) for member in members]
        shares = game.equilibrium_mixture(tables)[1].tolist()
    except NotExactError:
        shares_from = "games of the league"
        known = equilibrium_of(frozen, league.payoffs.view("combined"))
        if len(frozen) == 1:
            known = {frozen[0]: 1.0}
        if not known:
            raise ConfigError(
                "too few games between frozen players to know their equilibrium; train on, or name a player"
            ) from None
        shares = [known.get(name, 0.0) for name in frozen]
    kept = [(member, share) for member, share in zip(members, shares, strict=True) if share > 1e-6]
    total = sum(share for _, share in kept)
    return Target(
        name=MIXTURE,
        members=tuple(replace(member, share=share / total) for member, share in kept),
        shares_from=shares_from,
    )

"""A player of a run that is exported: its networks, what the run knows of it, and its snapshots as levels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ludus.config import ConfigError
from ludus.data.checks import unknown
from ludus.experiment import Experiment
from ludus.league.payoff import wilson_interval
from ludus.models.policy import Policy, join_kinds, weights_of
from ludus.observe.league_fold import LeaguePlayer, RunFold
from ludus.runtime.assemble import load_players, load_state
from ludus.store.checkpoints import encode_tensors
from ludus.store.files import StoreError
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder, read_metrics
from ludus.workers.player_cache import played_weights


class ExportFailed(StoreError):  # noqa: N818
    """A player that cannot be exported; the message says why."""


@dataclass(frozen=True, kw_only=True)
class LoadedPlayer:
    """A player of a run with its networks."""

    experiment: Experiment
    name: str
    model: str
    weights: str | None
    policies: tuple[Policy, ...]

    @property
    def digest(self) -> str:
        """Of its weights."""
        joined = join_kinds(self.policies, map(weights_of, self.policies))
        return hashlib.sha256(encode_tensors(joined)).hexdigest()


def load_player(folder: RunFolder, player: str, weights: Variant) -> LoadedPlayer:
    now, league = load_state(folder)
    (seated,) = load_players(now, folder, league, [player], weights=weights).values()
    if seated.bot is not None:
        raise ConfigError(f"{player!r} is a bot, which has no network; players: {', '.join(league.standings)}")
    return LoadedPlayer(
        experiment=now,
        name=player,
        model=seated.model_name,
        weights=played_weights(league, folder.models, player, weights),
        policies=seated.policies,
    )


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """Evaluation games against one bot; a draw is half a win."""

    opponent: str
    greedy: bool
    games: int
    win_rate: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PlayerFacts:
    """What a run knows of one of its players."""

    id: str
    """In the league; the snapshot behind a tag."""
    decisions: int
    """That it was trained on."""
    rating: dict[str, Any] | None
    """Elo with its interval of 95 %, the anchor whose Elo is 0, and the games behind it."""
    score: tuple[float, float] | None
    """Mean score and standard error, in games with one team."""
    win_rates: tuple[WinRate, ...]
    exploitability: str | None
    """The latest measure, in words."""


def player_facts(folder: RunFolder, player: str, model: str) -> PlayerFacts:
    """`model`: of the weights that are exported."""
    with closing(RunFold(folder)) as fold:
        fold.follow()
        fold.require_players()
        summary = fold.summary()
        known = fold.players(summary)
    found = _member(known, player, model)
    rating = None
    if found is not None and found.elo is not None and found.elo_interval is not None:
        low, high = found.elo_interval
        rating = {"elo": found.elo, "low": low, "high": high, "anchor": summary.anchor, "games": found.games}
    name = player if found is None else found.id
    bots = [one.id for one in known if one.role == "scripted"]
    return PlayerFacts(
        id=name,
        decisions=0 if found is None else found.decisions,
        rating=rating,
        score=None if found is None else found.score,
        win_rates=_win_rates(folder, name, model, bots),
        exploitability=_exploitability(folder, model),
    )


def _member(known: Sequence[LeaguePlayer], player: str, model: str) -> LeaguePlayer | None:
    by_id = {one.id: one for one in known}
    frozen = [one for one in known if one.model == model and one.role == "frozen"]
    return by_id.get(player) or (frozen[-1] if frozen else None)


def _rows(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    path = folder.metrics / f"{name}.jsonl"
    return read_metrics(path)[0] if path.exists() else []


def _win_rates(folder: RunFolder, player: str, model: str, bots: Sequence[str]) -> tuple[WinRate, ...]:
    """From the evaluations of this model, as `ludus train` and `ludus eval` keep them."""
    counts: dict[tuple[str, bool], tuple[float, int]] = {}
    for row in _rows(folder, "evaluations"):
        players, models = row.get("players", []), row.get("models", [])
        if len(players) != 2 or players[1] not in bots or "win_rate" not in row or models[:1] != [model]:
            continue
        key = players[1], bool(row.get("greedy"))
        points, games = counts.get(key, (0.0, 0))
        counts[key] = points + row["wins"] + row["draws"] / 2, games + row["episodes"]
    return tuple(
        WinRate(
            opponent=opponent,
            greedy=greedy,
            games=games,
            win_rate=points / games,
            interval=wilson_interval(points, games),
        )
        for (opponent, greedy), (points, games) in sorted(counts.items())
    )


def _exploitability(folder: RunFolder, model: str) -> str | None:
    for row in reversed(_rows(folder, "exploits")):
        if [one.get("model") for one in row.get("players", ())] != [model]:
            continue
        if exact := row.get("exact"):
            return (
                f"{exact['exploitability']:.4f} (exact: the mean score of a best response; NashConv "
                f"{exact['nash_conv']:.4f})"
            )
        if trained := row.get("trained"):
            measured = trained["measured"]
            low, high = measured["win_rate_interval"]
            return (
                f"at least: a best response trained for {trained['budget']:,} decisions wins "
                f"{measured['win_rate']:.1%} ({low:.1%} to {high:.1%}) of {measured['episodes']:,} games"
            )
    return None


def choose_snapshots(folder: RunFolder, player: str, levels: int) -> list[str]:
    """Up to `levels` snapshots of a learning player, weakest first, with strengths that are spread evenly."""
    with closing(RunFold(folder)) as fold:
        fold.follow()
        fold.require_players()
        snapshots = fold.snapshots
        members = {one.id: one for one in fold.players(fold.summary())}
    if player not in snapshots:
        raise ConfigError(unknown("learning player", player, list(snapshots)))
    strengths = {one: found for one in snapshots[player] if (found := _strength(members.get(one))) is not None}
    if not strengths:
        raise ConfigError(f"{player!r} has no rated snapshots in {folder.path} yet: train on, or export it as it is")
    return spread_evenly(strengths, levels)


def _strength(member: LeaguePlayer | None) -> float | None:
    """Elo, or the mean score in a game with one team."""
    if member is None:
        return None
    return member.score[0] if member.score is not None else member.elo


def spread_evenly(strengths: Mapping[str, float], levels: int) -> list[str]:
    """The weakest and the strongest, and those nearest to even steps between them; weakest first."""
    left = sorted(strengths, key=strengths.__getitem__)
    if len(left) <= levels:
        return left
    if levels == 1:
        return left[-1:]
    low, high = strengths[left[0]], strengths[left[-1]]
    chosen = [left.pop(0), left.pop()]
    for step in range(1, levels - 1):
        wanted = low + (high - low) * step / (levels - 1)
        nearest = min(left, key=lambda one: abs(strengths[one] - wanted))
        left.remove(nearest)
        chosen.append(nearest)
    return sorted(chosen, key=strengths.__getitem__)

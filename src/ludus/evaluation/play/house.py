"""Starts games of a person against players of a run, and records each game once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ludus.data.records import ModelId
from ludus.data.search import split_search
from ludus.data.specs import Choice
from ludus.evaluation.play.session import Ended, GameSeats, PlaySession, SeatedOpponent, WrongMove
from ludus.evaluation.play.views import YOU, FindDrawing, GameView, find_view, has_own_view
from ludus.experiment import Experiment
from ludus.games.game import GameSource, Seat
from ludus.games.pictures import written_score
from ludus.games.recording import innermost
from ludus.games.seat_rows import GameError
from ludus.league.league import League
from ludus.league.summary import best_snapshot, elo_of, summarise
from ludus.runtime.assemble import load_players
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import SeatedPlayer, is_model_name, played_weights, resolve_player

BEST = "@best"
PERSON = "human"
"""The name of a person who has said none."""
NARROW_ELO = 100.0
WEIGHTS: dict[Variant | None, str] = {"average": "averaged weights", "live": "live weights", None: ""}
DRAWN = 0.5


class Opponents:
    """The opponents in a run, which may be training: every game uses the newest weights."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, league: League, *, weights: Variant, greedy: bool
    ) -> None:
        """`league` has folded the ledger up to some row; it is brought up to date here."""
        self._experiment = experiment
        self._folder = folder
        self._league = league
        self._weights = weights
        self._greedy = greedy
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Learning players first, with their best; then snapshots, the newest first; then bots."""
        return [name for names in self._groups().values() for name in names]

    def offered(self) -> list[dict[str, Any]]:
        """Every opponent for a list that a person chooses from: its name, its group, its weights, and Elo if known."""
        ratings = self.ratings()
        return [
            {"name": name, "group": group, "weights": WEIGHTS[self.weights_of(name)], "elo": ratings.get(name)}
            for group, names in self._groups().items()
            for name in names
        ]

    def usual(self) -> str:
        """The best of the first learning player; else its newest snapshot, else itself, else a bot."""
        names = self.names()
        return next((name for name in names if name.endswith(BEST)), names[0])

    def weights_of(self, name: str) -> Variant | None:
        """The weights that a player plays with; None for a bot."""
        with self._lock:
            return played_weights(self._league, self._folder.models, name, self._weights)

    def _groups(self) -> dict[str, list[str]]:
        with self._lock:
            self._follow()
            learning = list(self._league.standings)
            best = [f"{player}{BEST}" for player in learning if best_snapshot(self._league, player) is not None]
            frozen = list(reversed(self._league.candidates.frozen()))
        bots = list(self._experiment.grouped_game.bots())
        return {"best so far": best, "learning": learning, "snapshots, newest first": frozen, "bots": bots}

    def ratings(self) -> dict[str, int]:
        """Elo of those that it is known of within a hundred. `@best` has the Elo of the snapshot that it stands for."""
        best = self._groups()["best so far"]
        with self._lock:
            known = elo_of(summarise(self._league))
            rated = {name: round(elo) for name, (elo, error) in known.items() if 1.96 * error <= NARROW_ELO}
            for name in best:
                model, _ = resolve_player(self._league, self._folder.models, name)
                if (snapshot := self._listed(name, model)) in rated:
                    rated[name] = rated[snapshot]
            return rated

    def judge(self) -> str | None:
        """The player whose values judge games against bots: `@best` of a learning player, or the newest snapshot."""
        best, _, snapshots, _ = self._groups().values()
        return next(iter([*best, *snapshots]), None)

    def suggestion(self, name: str, won: float) -> dict[str, Any] | None:
        """After a game against `name`: the next stronger opponent if the person has won, the next weaker one if not.
        None after a draw, and where ratings are not known."""
        ratings = self.ratings()
        own = ratings.get(name)
        if own is None or won == DRAWN:
            return None
        others = {other: elo for other, elo in ratings.items() if other != name}
        if won > DRAWN:
            said, others = "beat", {other: elo for other, elo in others.items() if elo > own}
            found = min(others, key=others.__getitem__, default=None)
        else:
            said, others = "lost to", {other: elo for other, elo in others.items() if elo < own}
            found = max(others, key=others.__getitem__, default=None)
        if found is None:
            return None
        return {"player": found, "text": f"You {said} {name} (Elo {own}). Try {found} (Elo {others[found]})."}

    def seat(self, name: str) -> tuple[str, SeatedPlayer]:
        """A player for one game, and what the ledger calls it. Raises ConfigError with the nearest name if there is
        none such."""
        with self._lock:
            self._follow()
            own = self._experiment.with_own_bots()  # games go on side by side
            [seated] = load_players(
                own, self._folder, self._league, [name], weights=self._weights, greedy=self._greedy
            ).values()
            return self._listed(name, seated.model), seated

    def is_taken(self, name: str) -> bool:
        """Whether a player or a bot has this name."""
        with self._lock:
            self._follow()
            return name in self._league.players or name in self._experiment.grouped_game.bots()

    def _listed(self, name: str, model: ModelId | None) -> str:
        name, _ = split_search(name)
        if not is_model_name(name) or model is None:
            return name
        candidates = self._league.candidates
        pinned = [player.id for player in candidates.players if player.frozen and player.model == str(model)]
        return pinned[-1] if pinned else model.player

    def _follow(self) -> None:
        with self._folder.ledger(read_only=True) as ledger:
            ledger.fold(self._league.apply, after=self._league.num_events)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The result of recording a game."""

    text: str
    match_id: int | None = None
    """None: it is not in the ledger."""
    replay: str | None = None
    """Name of its file in the run's folder of replays."""
    brief: str = ""
    """The text for the page, where paths mean nothing; empty: the same text."""


Keep = Callable[[GameSeats, Ended | None, str], Kept]
"""Records a game from its players, its end (None: it was abandoned) and the reason. Called once per game."""


class PlayHost:
    """Games of one run. Each has a table of its own."""

    def __init__(
        self, source: GameSource, opponents: Opponents, *, person: str, keep: Keep, drawing: FindDrawing | None = None
    ) -> None:
        require_playable(source)
        self.source = source
        self.opponents = opponents
        self.person = person
        self.view: GameView = find_view(source, drawing)
        self.seat_names = self.view.seat_names(innermost(source))
        self._keep = keep

    def start(self, player: str, seat: Seat | None) -> PersonsGame:
        """`seat` None: any. Raises ConfigError for a player and WrongMove for a seat that does not exist."""
        num_seats = self.source.spec.num_seats
        if seat is not None and not 0 <= seat < num_seats:
            raise WrongMove(f"{self.source.spec.name} has seats 0 to {num_seats - 1}, not {seat}")
        listed, seated = self.opponents.seat(player)
        agent = SeatedOpponent(seated, seed=secrets.randbits(63))
        chosen = secrets.randbelow(num_seats) if seat is None else seat
        judging = player if agent.thinks else self.opponents.judge()
        judge = None
        if judging is not None and not agent.thinks:
            judge = SeatedOpponent(self.opponents.seat(judging)[1], seed=secrets.randbits(63))
        session = PlaySession(self.source, self.view, agent, chosen, seed=secrets.randbits(63), judge=judge)
        line = GameSeats(person=self.person, opponent=listed, model=agent.model, seat=chosen)
        return PersonsGame(
            session,
            line,
            self._keep,
            self.opponents,
            shown_name=player,
            seat_name=self.seat_names[chosen],
            judge=judging or "",
        )


def require_playable(source: GameSource) -> None:
    """Raises GameError if a person cannot play the game here."""
    spec = innermost(source).spec
    if spec.num_teams < 2:
        raise GameError(f"{spec.name} has one team: there is nobody to play against")
    heads = [spec.kinds[kind].action.heads.values() for kind in spec.seats]
    if numbers := next((name for kind in spec.kinds for name in kind.action.boxes), None):
        raise GameError(f"{spec.name} cannot be played by a person: its head {numbers!r} takes real numbers")
    single = all(len(own) == 1 and isinstance(next(iter(own)), Choice) for own in heads)
    if not single and not has_own_view(source):
        raise GameError(f"{spec.name} cannot be played by a person: a decision there is more than one choice")


def is_playable(source: GameSource) -> bool:
    try:
        require_playable(source)
    except GameError:
        return False
    return True


class PersonsGame:
    """One game from its start until it is recorded."""

    def __init__(
        self,
        session: PlaySession,
        line: GameSeats,
        keep: Keep,
        opponents: Opponents,
        *,
        shown_name: str,
        seat_name: str,
        judge: str,
    ) -> None:
        """`judge`: the name of the player whose values are shown."""
        self.session = session
        self.line = line
        self.kept: Kept | None = None
        self._keep = keep
        self._opponents = opponents
        self._settled = False
        self.opponent = shown_name
        self.seat_name = seat_name
        self.judge = judge

    @property
    def is_open(self) -> bool:
        """Whether the game goes on."""
        return self.session.ended is None and not self._settled

    @property
    def must_be_settled(self) -> bool:
        """Whether the game has ended and is not recorded yet."""
        return self.session.ended is not None and not self._settled

    def move(self, option: int) -> None:
        self._play(lambda: self.session.move(option))

    def undo(self) -> None:
        self._play(self.session.undo)

    def tick(self, orders: Sequence[Any]) -> None:
        self._play(lambda: self.session.tick(orders))

    def settle(self, reason: str = "") -> None:
        """Have it recorded, once, however often this is called: with its result, or as void for a reason. A
        game in which the person has decided nothing yet leaves no trace."""
        if self._settled:
            return
        self._settled = True
        ended = self.session.ended
        if ended is None and not self.session.started:
            self.kept = Kept(text="it had not begun, and is not recorded")
            return
        self.kept = self._keep(self.line, ended, reason)

    def close(self, reason: str) -> None:
        """Close the game; if it is still going on, it is void for this reason."""
        self.settle(reason)
        self.session.close()

    def show(self, *, thoughts: bool = False) -> dict[str, Any]:
        """For the page: everything that the person may know, the players, and whether the game was recorded."""
        shown = self.session.show(thoughts=thoughts)
        kept = self.kept
        return shown | {
            "person": self.line.person,
            "opponent": self.opponent,
            "names": self.names,
            "seat_name": self.seat_name,
            "judge": self.judge,
            "suggestion": self.suggestion if shown["over"] else None,
            "teams": list(self.session.spec.teams),
            "outcome": self.outcome,
            "won": self.won,
            "open": self.is_open,
            "kept": None if kept is None else {"text": kept.brief or kept.text, "replay": kept.replay},
        }

    @property
    def names(self) -> list[str]:
        """The players by seat, as the person reads them."""
        own = YOU if self.line.person == PERSON else f"{self.line.person} ({YOU})"
        return [own if seat == self.session.seat else self.opponent for seat in range(self.session.spec.num_seats)]

    @property
    def described(self) -> str:
        """The opponent with its weights and its rating."""
        elo = self._opponents.ratings().get(self.opponent)
        known = [WEIGHTS[self._opponents.weights_of(self.opponent)], "" if elo is None else f"Elo {elo}"]
        told = ", ".join(filter(None, known))
        return f"{self.opponent} ({told})" if told else self.opponent

    @cached_property
    def suggestion(self) -> dict[str, Any] | None:
        """The opponent to try next, once the game has ended."""
        return None if self.won is None else self._opponents.suggestion(self.opponent, self.won)

    @property
    def won(self) -> float | None:
        """1 for the person, 0 for the others, 0.5 for a draw; None while it goes on."""
        ended = self.session.ended
        if ended is None:
            return None
        own = self.session.spec.teams[self.session.seat]
        others = max(score for team, score in enumerate(ended.score) if team != own)
        return DRAWN if ended.score[own] == others else float(ended.score[own] > others)

    @property
    def outcome(self) -> str:
        """In words; empty while it goes on."""
        ended, won = self.session.ended, self.won
        if ended is None or won is None:
            return ""
        said = {1.0: "You win", 0.0: "You lose"}.get(won, "A draw")
        return f"{said} (score {written_score(ended.score[self.session.spec.teams[self.session.seat]])})"

    def _play(self, play: Callable[[], None]) -> None:
        if self._settled:
            raise WrongMove("the game has ended; begin a new one")
        try:
            play()
        except WrongMove:
            raise
        except Exception as error:
            self.settle(f"the game failed: {error}")
            raise GameError(f"the game failed, and is void: {error}") from error

"""A game in a terminal, or through a pipe: moves are read from lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ludus.data.checks import nearest
from ludus.evaluation.play.house import PersonsGame, PlayHost
from ludus.evaluation.play.session import WrongMove
from ludus.evaluation.play.views import STONES
from ludus.games.pictures import written_score
from ludus.games.seat_rows import GameError

QUIT = ("q", "quit")
THINK = ("?", "think")
_MOST_LISTED = 24

Read = Callable[[], str | None]
"""The next line that the person has typed; None: there is none any more."""
Say = Callable[[str], None]


class InputEnded(Exception):  # noqa: N818
    """The moves ended before the game did."""


def play_in_terminal(
    house: PlayHost, player: str, seat: int | None, *, read: Read, say: Say, complain: Say, thoughts: bool
) -> bool:
    """One game; False if the person left it. Raises `InputEnded`; the game is void then too."""
    if house.view.real_time:
        raise GameError(f"{house.source.spec.name} is played by mouse: leave out --terminal")
    game = house.start(player, seat)
    reason = "interrupted"
    try:
        say(_greeting(game))
        while game.is_open:
            say(f"\n{game.session.written()}")
            if thoughts:
                say(_thoughts(game))
            option = _next_option(game, read, say, complain)
            if option is None:
                reason = "the person left"
                return False
            game.move(option)
        say(f"\n{game.session.written()}\n{game.outcome}")
        return True
    except InputEnded:
        reason = "the input ended"
        raise
    finally:
        game.close(reason)
        if game.kept is not None:
            say(game.kept.text)


def _greeting(game: PersonsGame) -> str:
    spec, seat = game.session.spec, game.session.seat
    shown = game.show()
    model = f" ({game.line.model})" if game.line.model else ""
    stone = f", your stones are {STONES[seat + 1]}" if shown["view"]["kind"] == "board" else ""
    first = ", and begin" if shown["decisions"] == 0 else ""
    return (
        f"{spec.name}: you ({game.line.person}) have seat {seat}{stone}{first}; "
        f"against {shown['opponent']}{model}\n"
        f"type a move, {THINK[0]} for what your opponent would do in your place, or {QUIT[0]} to leave"
    )


def _next_option(game: PersonsGame, read: Read, say: Say, complain: Say) -> int | None:
    """The option that the person chooses; None: the person leaves."""
    legal = game.session.options()
    say(f"your move ({_listed(legal)}):")
    while True:
        line = read()
        if line is None:
            raise InputEnded("the input ended before the game did: the game is void")
        text = line.strip().lower()
        if not text:
            continue
        if text in QUIT:
            return None
        if text in THINK:
            say(_thoughts(game))
            continue
        try:
            return _chosen(text, legal)
        except WrongMove as error:
            complain(f"error: {error}")


def _chosen(text: str, legal: Mapping[int, str]) -> int:
    by_name = {name: option for option, name in legal.items()}
    if text not in by_name:
        close = nearest(text, by_name) if not text.isdigit() else None
        hint = f"did you mean {close!r}?" if close else f"legal are {_listed(legal)}"
        raise WrongMove(f"{text!r} is not a move that you can make now; {hint}")
    return by_name[text]


def _listed(legal: Mapping[int, str]) -> str:
    names = list(legal.values())
    return ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")


def _thoughts(game: PersonsGame) -> str:
    told = game.session.show(thoughts=True)["thoughts"]
    if not told["thinks"]:
        return f"{game.line.opponent} is a bot: it says neither values nor probabilities"
    yours = told["yours"]
    likely = sorted(yours["options"], key=lambda option: -option["p"])
    shares = ", ".join(f"{option['name']} {option['p']:.0%}" for option in likely if option["p"] >= 0.005)
    value = "" if yours["value"] is None else f"your place is worth {written_score(yours['value'])} to it; "
    return f"{value}it would play {shares}"

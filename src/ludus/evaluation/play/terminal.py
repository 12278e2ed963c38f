"""A game in a terminal, or through a pipe: moves are read from lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ludus.data.checks import nearest
from ludus.evaluation.play.house import PERSON, PersonsGame, PlayHost
from ludus.evaluation.play.session import WrongMove
from ludus.evaluation.play.views import STONES
from ludus.games.pictures import written_score
from ludus.games.seat_rows import GameError

QUIT = ("q", "quit")
THINK = ("?", "think")
UNDO = ("u", "undo")
_BAR = 20
_BLOCKS = "▁▂▃▄▅▆▇█"
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
            say(f"\n{game.session.written(game.names)}{_value(game)}")
            if thoughts:
                say(_thoughts(game))
            chosen = _next_choice(game, read, say, complain)
            if chosen in QUIT:
                reason = "the person left"
                return False
            if isinstance(chosen, int):
                game.move(chosen)
        say(f"\n{game.session.written(game.names)}\n{game.outcome}{_analysis(game)}")
        if game.suggestion is not None:
            say(game.suggestion["text"])
        return True
    except InputEnded:
        reason = "the input ended"
        raise
    finally:
        game.close(reason)
        if game.kept is not None:
            say(game.kept.text)


def _greeting(game: PersonsGame) -> str:
    shown, seat = game.show(), game.session.seat
    named = STONES[seat + 1] if shown["view"]["kind"] == "board" else game.seat_name
    first = " and begin" if shown["decisions"] == 0 else ""
    undo = "" if game.session.no_undo else f", {UNDO[0]} to take a move back"
    own = "you" if game.line.person == PERSON else f"{game.line.person}, you"
    return (
        f"{game.session.spec.name}: {own} are {named}{first}, against {game.described}\n"
        f"type a move, {THINK[0]} for what it would do in your place{undo}, or {QUIT[0]} to leave"
    )


def _next_choice(game: PersonsGame, read: Read, say: Say, complain: Say) -> int | str:
    """The option that the person chooses; the word, if the person leaves or has taken a move back."""
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
            return text
        if text in THINK:
            say(_thoughts(game))
            continue
        try:
            if text in UNDO:
                game.undo()
                return text
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
    value = "" if yours["value"] is None else f"it expects a score of {written_score(yours['value'])} for you; "
    return f"{value}it would play {shares}"


def _value(game: PersonsGame) -> str:
    """The evaluation bar: a line of its own, or nothing."""
    told = game.session.show()["evaluation"]
    if told is None:
        return ""
    score, judge = written_score(told["value"]), f" ({game.judge})" if game.judge != game.opponent else ""
    if told["range"] is None:
        return f"\nexpected score{judge}: {score}"
    low, high = told["range"]
    full = round(_BAR * (told["value"] - low) / (high - low))
    return f"\nyou [{'#' * full}{'-' * (_BAR - full)}] {game.opponent}, expected score{judge}: {score}"


def _analysis(game: PersonsGame) -> str:
    """The values at the person's turns, and the moves that the judge would have made instead."""
    told = game.session.show()["analysis"]
    if told is None:
        return ""
    turns, end = told["turns"], told["end"]
    values = [*(turn["value"] for turn in turns), end["value"]]
    low, high = told["range"] or (min(values), max(values))
    marks = "".join(_BLOCKS[round((len(_BLOCKS) - 1) * (value - low) / ((high - low) or 1))] for value in values)
    lines = [f"\n\nwhat {game.judge} expected for you, turn by turn: {marks}"]
    for number, turn in enumerate(turns):
        if turn["played"] != turn["best"]:
            costs = f"from {written_score(turn['value'])} to {written_score(values[number + 1])}"
            worst = ", which cost most" if number == told["worst"] else ""
            lines.append(
                f"move {turn['turn']}: you played {turn['played']} ({turn['played_p']:.0%}), "
                f"{game.judge} prefers {turn['best']} ({turn['best_p']:.0%}); {costs}{worst}"
            )
    return "\n".join(lines)

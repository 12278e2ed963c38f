"""Which matches failed, why, and who never finished one, read off a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ludus.data.records import AnyEvent, Match, MatchFinished, MatchIssued, MatchVoid, Pair, Purpose, Result, Side
from ludus.observe.lost_matches import LONGEST_REASON, NO_FAULT, LossCount, LostMatches, on_one_line
from ludus.store.ledger import Ledger

LICENCE = "bot 'old' has ended with exit code 1; its last words: no licence"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


def play(ledger: Ledger, *players: str, void: str | None = None, purpose: Purpose = "training") -> None:
    """A match of two, finished unless it is void."""
    number = ledger.next_match_id()
    sides = tuple(Side((player,)) for player in players)
    result = Result(number, 1, 1, (1, 1), (Pair(0, 1, 1, 0, 0),), (1.0, -1.0), (1.0, 1.0), ("", ""), ("", ""))
    end: AnyEvent = MatchFinished(result) if void is None else MatchVoid(number, void)
    ledger.append([MatchIssued(Match(number, purpose, sides, 1, 1)), end])


def lost(ledger: Ledger) -> LostMatches:
    return LossCount().follow(ledger)


def test_a_bot_that_never_plays_is_named_with_its_reason(ledger: Ledger) -> None:
    play(ledger, "main", "random")
    play(ledger, "main", "old", void=f"game: {LICENCE}")
    play(ledger, "main.1", "old", void=f"game: {LICENCE}")
    play(ledger, "main", "random", void=f"env_crash: ProgramLost: {LICENCE}")
    play(ledger, "main.1", "random")
    assert lost(ledger).lines() == [
        "3 of 5 matches are void because something failed:",
        f"  3  {LICENCE}",
        f"old has never finished a match: {LICENCE}",
    ]
    play(ledger, "old", "random")
    assert lost(ledger).lines() == ["3 of 6 matches are void because something failed:", f"  3  {LICENCE}"]


def test_what_a_stop_leaves_open_is_not_worth_a_line(ledger: Ledger) -> None:
    for reason in NO_FAULT:
        play(ledger, "main", "random", void=reason)
    play(ledger, "main", "a_person", void="the person left", purpose="human")
    found = lost(ledger)
    assert (found.void, found.ended, found.lines()) == (0, 0, [])


def test_the_most_frequent_reasons_come_first_and_the_others_are_counted(ledger: Ledger) -> None:
    play(ledger, "a", "b")
    for reason, count in (("rare", 1), ("frequent", 12), ("seldom", 2), ("once", 1), ("at times", 4)):
        for _ in range(count):
            play(ledger, "a", "b", void=f"game: {reason}")
    assert lost(ledger).lines() == [
        "20 of 21 matches are void because something failed:",
        "  12  frequent",
        "   4  at times",
        "   2  seldom",
        "   2  for 2 other reasons",
    ]


def test_reasons_that_differ_only_by_numbers_are_one_but_names_stay_apart(ledger: Ledger) -> None:
    for number in (3, 4):
        play(ledger, "a", "b", void=f"killed: actor-{number} was ended by SIGKILL")
        play(ledger, "a", f"bot{number}", void=f"game: bot 'bot{number}' has ended with exit code 1")
    assert lost(ledger).reasons == {
        "actor-3 was ended by SIGKILL": 2,
        "bot 'bot3' has ended with exit code 1": 1,
        "bot 'bot4' has ended with exit code 1": 1,
    }


def test_the_reason_of_a_player_is_its_own_where_there_is_one(ledger: Ledger) -> None:
    play(ledger, "main", "random")
    for _ in range(3):
        play(ledger, "main", "slow", void="env_crash: ProgramLost: bot 'old' is gone")
    play(ledger, "main", "slow", void="game: bot 'slow' gave no answer within 10 s")
    play(ledger, "main", "old", void="game: bot 'old' is gone")
    assert lost(ledger).never_finished == {"slow": "bot 'slow' gave no answer within 10 s", "old": "bot 'old' is gone"}


def test_names_with_numbers_in_them_stay_apart(ledger: Ledger) -> None:
    for name in ("v-1.x", "v-2.x"):
        play(ledger, "main", name, void=f"game: bot '{name}' has ended with exit code 1")
        play(ledger, "main", name, void="game: another fault")
        play(ledger, "main", name, void="game: another fault")
    found = lost(ledger).never_finished
    assert {name: found[name] for name in ("v-1.x", "v-2.x")} == {
        "v-1.x": "bot 'v-1.x' has ended with exit code 1",
        "v-2.x": "bot 'v-2.x' has ended with exit code 1",
    }


def test_players_with_the_same_reason_share_a_line(ledger: Ledger) -> None:
    for number in range(3):
        play(ledger, f"a{number}", f"b{number}", void="env_hang: no sign of life for 60 s")
    line = lost(ledger).lines()[-1]
    assert line.endswith(" and 2 more have never finished a match: no sign of life for 60 s")
    assert line.count(",") == 3


def test_it_goes_on_where_it_was(ledger: Ledger) -> None:
    followed = LossCount()
    for number in range(1, 4):
        play(ledger, "main", "old", void=f"game: {LICENCE}")
        assert followed.follow(ledger) == lost(ledger)
        assert followed.follow(ledger).void == number
    play(ledger, "main", "old")
    assert followed.follow(ledger) == lost(ledger)
    assert msgspec.to_builtins(followed.follow(ledger)) == {
        "void": 3,
        "ended": 4,
        "reasons": {LICENCE: 3},
        "never_finished": {},
        "absent": {},
    }


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    words = "\n".join(f'  File "bot.py", line {number}, in play' for number in range(20))
    short = on_one_line(f"bot 'old' has ended with exit code 1; its last words: {words}\nKeyError: 'licence'")
    assert len(short) <= LONGEST_REASON
    assert short.startswith("bot 'old' has ended with exit code 1")
    assert short.endswith("KeyError: 'licence'")
    assert "\n" not in short

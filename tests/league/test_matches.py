from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from league_rows import match_of, result_of

from ludus.data.records import Pair, Result
from ludus.league.matches import MatchBook, MatchConflictError, UnknownMatchError, check_result

MATCH = match_of("a", "b", id=3, episodes=10)
GOOD = result_of(MATCH, (5, 2, 3))


def test_a_match_ends_once() -> None:
    book = MatchBook()
    book.issue(MATCH)
    book.lease(3, "actor")
    assert book.open_matches[3].holder == "actor"
    assert book.finish(GOOD).match == MATCH
    for again in (lambda: book.finish(GOOD), lambda: book.cancel(3), lambda: book.lease(3, "actor")):
        with pytest.raises(MatchConflictError, match="match 3 has already ended"):
            again()
    assert (book.issued, book.finished, book.void, len(book.open_matches)) == (1, 1, 0, 0)


def test_ids_count_up() -> None:
    book = MatchBook()
    book.issue(MATCH)
    for id in (3, 2):
        with pytest.raises(MatchConflictError, match=f"match id {id} is not new"):
            book.issue(msgspec.structs.replace(MATCH, id=id))
    with pytest.raises(ValueError, match="at least 0"):
        MatchBook().issue(msgspec.structs.replace(MATCH, id=-1))


def test_unknown_matches_are_refused() -> None:
    book = MatchBook()
    for call in (lambda: book.finish(GOOD), lambda: book.cancel(9), lambda: book.lease(-1, "x")):
        with pytest.raises(UnknownMatchError, match="never issued"):
            call()


def test_a_restart_voids_what_is_open_and_takes_the_void_rows_without_counting_twice() -> None:
    book = MatchBook()
    book.issue(MATCH)
    book.restart()
    assert (book.void, len(book.open_matches)) == (1, 0)
    with pytest.raises(MatchConflictError, match="was void when the run restarted"):
        book.finish(GOOD)
    book.cancel(3)
    assert book.void == 1
    with pytest.raises(MatchConflictError):
        book.cancel(3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["issue", "finish", "void", "restart"]), st.integers(0, 5)), max_size=40))
def test_every_issued_match_is_open_or_ended_exactly_once(steps: list[tuple[str, int]]) -> None:
    book, ended = MatchBook(), []
    for step, back in steps:
        match_id = book.last_id - back
        try:
            if step == "issue":
                book.issue(msgspec.structs.replace(MATCH, id=book.last_id + 1))
            elif step == "finish":
                book.finish(msgspec.structs.replace(GOOD, match_id=match_id))
                ended.append(match_id)
            elif step == "void":
                book.cancel(match_id)
            else:
                book.restart()
        except (MatchConflictError, UnknownMatchError):
            pass
        assert book.issued == book.finished + book.void + len(book.open_matches)
    assert len(set(ended)) == len(ended) == book.finished


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 0}, "episodes=0"),
        ({"episodes": 11}, "episodes=11"),
        ({"steps": -1}, "negative counts: steps=-1"),
        ({"decisions": (1, -1)}, "negative counts"),
        ({"decisions": (1,)}, "decisions has 1 entries for 2 sides"),
        ({"score_sum": (1.0, float("nan"))}, "scores are not finite"),
        ({"last_models": ()}, "last_models has 0 entries"),
        ({"pairs": ()}, r"pairs of sides are \[\], expected \[\(0, 1\)\]"),
        ({"pairs": (Pair(1, 0, 5, 2, 3),)}, "pairs of sides"),
        ({"pairs": (Pair(0, 1, 11, 2, -3),)}, "negative counts"),
        ({"pairs": (Pair(0, 1, 5, 2, 2),)}, "do not add up to episodes=10"),
    ],
)
def test_results_that_cannot_be_are_refused_and_the_match_stays_open(changes: dict[str, object], message: str) -> None:
    wrong: Result = msgspec.structs.replace(GOOD, **changes)
    book = MatchBook()
    book.issue(MATCH)
    with pytest.raises(ValueError, match=f"result of match 3 is refused: .*{message}"):
        book.finish(wrong)
    book.finish(GOOD)


def test_a_match_of_one_team_has_no_pairs() -> None:
    alone = match_of("a", episodes=10)
    check_result(alone, result_of(alone))

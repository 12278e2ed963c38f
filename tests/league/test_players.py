from __future__ import annotations

import pytest

from ludus.data.checks import unknown
from ludus.data.records import LearnerProgress, PlayerReset
from ludus.league.players import Player, Standing, check_player_id


@pytest.mark.parametrize("name", ["main", "main_0", "main.12", "a" * 64, "Bot-3", "7"])
def test_ordinary_ids_are_accepted(name: str) -> None:
    assert check_player_id(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "a\nb",
        "a\n",
        "a\0b",
        "a:b",
        "a" * 65,
        "a" * 10_000,
        "..",
        ".",
        "-rf",
        "a\\b",
        "'; DROP",
        "\u202eabc",
        "é",
    ],
)
def test_ids_that_could_leave_their_folder_or_column_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="player id"):
        check_player_id(name)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    assert "did you mean 'main'" in unknown("role", "mian", ["main", "exploiter"])
    assert "'main', 'exploiter'" in unknown("role", "zzz", ["main", "exploiter"])


def _standing(decisions: int) -> Standing:
    fresh = Standing(player=Player(id="main", role="main"))
    return fresh.progressed(LearnerProgress("main", 0, 5, decisions))


def test_decisions_count_from_the_last_snapshot() -> None:
    frozen = _standing(100).frozen("main:0:1", promoted=True, reset=False)
    assert frozen.decisions_since_snapshot == 0
    assert frozen.progressed(LearnerProgress("main", 0, 6, 130)).decisions_since_snapshot == 30


def test_a_learner_resumed_from_an_older_checkpoint_does_not_go_negative() -> None:
    frozen = _standing(100).frozen("main:0:1", promoted=True, reset=False)
    resumed = frozen.progressed(LearnerProgress("main", 1, 4, 80))
    assert resumed.decisions_since_snapshot == 0
    assert resumed.progressed(LearnerProgress("main", 1, 9, 150)).decisions_since_snapshot == 50


@pytest.mark.parametrize(("reported", "since"), [(30, 30), (130, 30)])
def test_after_a_reset_the_learner_may_count_on_or_from_zero(reported: int, since: int) -> None:
    frozen = _standing(100).frozen("main:0:1", promoted=True, reset=True)
    reset = frozen.after_reset(PlayerReset("main", 1, None))
    assert reset.latest_model is None
    assert reset.decisions_since_snapshot == 0
    assert reset.progressed(LearnerProgress("main", 1, 0, reported)).decisions_since_snapshot == since


def test_late_reports_of_an_earlier_incarnation_are_ignored() -> None:
    reset = _standing(100).after_reset(PlayerReset("main", 1, None))
    assert reset.progressed(LearnerProgress("main", 0, 99, 10_000)) == reset


@pytest.mark.parametrize("start", [None, "clone:0:7"])
def test_weights_come_from_the_latest_snapshot_and_after_a_reset_from_the_start(start: str | None) -> None:
    frozen = _standing(100).frozen("main:0:5", promoted=True, reset=True)
    assert frozen.ancestor == "main:0:5"
    assert frozen.progressed(LearnerProgress("main", 0, 9, 150)).ancestor == "main:0:5"
    assert frozen.after_reset(PlayerReset("main", 1, start)).ancestor == start

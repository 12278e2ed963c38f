"""The documents of a run folder: their numbers, and what is said where there are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from planted_runs import BOTTLENECK, WORKERS, plant, status_of, write_metrics

from ludus.data.records import MatchFinished, MatchIssued, MatchVoid, PlayerAbsent, PlayerAdded
from ludus.league.ratings import WIDE_ELO
from ludus.observe import view as view_module
from ludus.observe.documents import MetricsTable, Series, thinned
from ludus.observe.league_fold import Counts
from ludus.observe.league_page import MatchFilter
from ludus.observe.overview import concerns_of_matches, concerns_of_metrics
from ludus.observe.strength import NashConv, RatedLine, Strength, YardstickLine, verdict_of
from ludus.observe.view import RunView, ViewError
from ludus.store.run_control import write_status
from ludus.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return plant(tmp_path_factory.mktemp("planted") / "run")


def plain(view: RunView, name: str) -> Any:
    return json.loads(msgspec.json.encode(view.document(name)))


def shown(folder: RunFolder) -> RunView:
    view = RunView(folder)
    view.refresh()
    return view


def league_json(folder: RunFolder) -> Any:
    command = [sys.executable, "-m", "ludus.cli.main", "league", str(folder.path), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_the_league_has_the_numbers_of_ludus_league(run: RunFolder) -> None:
    expected, league = league_json(run), plain(shown(run), "league")
    assert league["anchor"] == expected["anchor"]
    assert league["matches"] == expected["matches"]
    assert [start["model"] for start in league["players"][0]["lineage"]] == [None, None]
    for mine, other in zip(league["players"], expected["players"], strict=True):
        for name in ("id", "role", "parent", "reason", "decisions", "active", "opponents"):
            assert mine[name] == (pytest.approx(other[name]) if name == "opponents" and other[name] else other[name])
        assert mine["elo"] == pytest.approx(other["elo"], abs=1e-6)
        assert mine["elo_interval"] == pytest.approx(other["elo_interval"], abs=1e-6)
        assert mine["equilibrium"] == pytest.approx(other["equilibrium"], abs=1e-6)
    for mine, other, games in zip(league["win_rates"], expected["win_rates"], expected["games"], strict=True):
        for rate, exact, number in zip(mine, other, games, strict=True):
            assert (rate is None) == (number < 10)
            assert rate is None or rate == pytest.approx(exact, abs=5.1e-4)
    top = plain(shown(run), "top")["measures"]
    assert [layer["players"] for layer in top["layers"]] == [
        layer["players"] for layer in expected["measures"]["layers"]
    ]
    assert top["transitive_share"]["value"] == pytest.approx(
        expected["measures"]["transitive_share"]["value"], abs=1e-6
    )


def test_strength_follows_from_the_numbers_of_the_league(run: RunFolder) -> None:
    expected, strength = league_json(run), plain(shown(run), "strength")
    elo = {one["id"]: one["elo"] for one in expected["players"]}
    best = expected["tags"][strength["player"]]["best"]["player"]
    assert strength["best"] == best
    assert strength["best_elo"] == pytest.approx(elo[best], abs=0.06)
    assert strength["bots"] == {
        one["id"]: pytest.approx(one["elo"], abs=0.06)
        for one in expected["players"]
        if one["role"] == "scripted" and one["elo"] is not None
    }
    [line] = [one for one in strength["ratings"] if one["name"] == strength["player"]]
    snapshots = [one for one in expected["players"] if one["parent"] == strength["player"] and one["elo"] is not None]
    narrow = [one for one in snapshots if one["elo_interval"][1] - one["elo_interval"][0] <= 2 * WIDE_ELO]
    assert line["x"] == [one["decisions"] for one in narrow]
    assert line["y"] == [pytest.approx(one["elo"], abs=1e-3) for one in narrow]
    assert best in strength["verdict"][0]


def strength(
    *yardsticks: tuple[str, float], y: Sequence[float] = (), scores: Sequence[float] = (1.0, 1.0), **more: Any
) -> Strength:
    lines = [
        YardstickLine(player=name, score=score, win_rate=rate, low=rate - 0.04, high=rate + 0.04, games=500)
        for (name, rate), score in zip(yardsticks, scores, strict=False)
    ]
    rated = RatedLine(name="main", x=[1e6 * place for place in range(len(y))], y=[*y], error=[10.0] * len(y))
    parts = {"verdict": [], "player": "main", "best": "main.9", "best_elo": 0.0, "rating_unit": "Elo", "bots": {}}
    return Strength(
        **{
            **parts,
            "ratings": [rated],
            "win_rates": [],
            "exploitability": [],
            "exploited": [],
            "yardsticks": lines,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (strength(("alpha_beta_2", 0.87)), "main.9 beats alpha_beta_2 in 87% (83% to 91%) of games."),
        (
            strength(("alpha_beta_4", 0.42), ("random", 0.97)),
            "main.9 wins only 42% (38% to 46%) of games against alpha_beta_4; it beats random.",
        ),
        (
            strength(("alpha_beta_4", 0.48), y=(0, 50, 100, 150, 190, 250)),
            "main.9 is level with alpha_beta_4: it wins 48% (44% to 52%) of games. "
            "main gained 60 ± 14 Elo over the last 1M decisions.",
        ),
        (
            strength(("random", 0.97), y=(0, 50, 100, 150, 190, 195)),
            "main.9 beats random in 97% (93% to 101%) of games. "
            "No change that can be told from noise over the last 1M decisions (+5 ± 14 Elo).",
        ),
        (
            strength(("equilibrium", 0.55), scores=(-0.025,)),
            "main.9 wins 55% (51% to 59%) of games against equilibrium, and loses 0.025 a game on average.",
        ),
        (strength(best=None), "No evaluation has ended yet: how strong it is will be known after the first one."),
    ],
)
def test_the_verdict_says_how_strong_it_is(made: Strength, told: str) -> None:
    assert " ".join(verdict_of(made, {})) == told


@pytest.mark.parametrize(("newest", "told"), [(0.34, "fell from 0.5 to 0.34"), (0.5001, "stayed at 0.5")])
def test_the_verdict_of_a_game_whose_nash_conv_is_known(newest: float, told: str) -> None:
    won = {"scores": (-0.02, 0.3), "y": (0, 50, 100, 150, 190, 140)}  # which says little there
    exploited = [Series(name=name, x=[1e6], y=[y]) for name, y in (("other", 0.9), ("main", 0.6))]
    made = strength(("equilibrium", 0.55), ("random", 0.45), **won, exploited=exploited)
    measured = [NashConv("main.7", 0, 0.9), NashConv("main.8", 2e6, 0.5), NashConv("main.9", 3e6, newest)]
    assert " ".join(verdict_of(made, {}, measured)) == (
        f"main.9 has a NashConv of {min(newest, 0.5):g}, where 0 cannot be beaten. "
        f"That of main {told} over the last 1M decisions. "
        "The mean score of main.9 is -0.02 against equilibrium, +0.3 against random. "
        "The latest exploiter trained against main wins 60% of games; a better one may win more."
    )


def measure_nash_conv(folder: RunFolder, rows: Sequence[tuple[int, int | None, float | None]]) -> None:
    """`rows`: decisions of all players, decisions of the snapshot that was measured then, and its NashConv."""
    with (folder.metrics / "train.jsonl").open("w") as file:
        for decisions, trained, value in rows:
            row = {"decisions": decisions, "time": decisions, "main/nash_conv": value}
            row["main/nash_conv_decisions"] = trained
            file.write(json.dumps({name: one for name, one in row.items() if one is not None}) + "\n")


def test_several_players_train_and_the_snapshot_that_was_measured_is_named(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    measure_nash_conv(folder, [(2000, 1000, 0.9), (6000, 3000, 0.2), (10_000, 5000, 0.4)])
    found = plain(shown(folder), "strength")
    assert found["best"] == "main.3"
    assert found["verdict"][1] == "That of main rose from 0.2 to 0.4 over the last 2k decisions."
    with closing(folder.ledger()) as ledger:
        ledger.append([PlayerAbsent("main.3", "cut short")])
    found = plain(shown(folder), "strength")
    assert found["verdict"][0].startswith("main.5 has a NashConv of 0.4, where")


def test_the_verdict_tells_what_was_measured_not_the_means_that_a_chart_shows(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    measure_nash_conv(folder, [(10 * row, None, 0.1 if row == 300 else 0.5) for row in range(1, 601)])
    found = plain(shown(folder), "strength")
    assert found["verdict"][0].startswith("main.3 has a NashConv of 0.1, where")
    assert found["verdict"][1] == "That of main stayed at 0.5 over the last 1.2k decisions."


def test_where_nash_conv_is_measured_its_lowest_names_the_best(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    measure_nash_conv(folder, [(1000, None, 0.9), (3000, None, 0.2), (3500, None, None), (5000, None, 0.4)])
    found = plain(shown(folder), "strength")
    assert found["best"] == "main.3"
    assert found["verdict"][0].startswith("main.3 has a NashConv of 0.2, where 0 cannot be beaten.")
    assert found["verdict"][1] == "That of main rose from 0.2 to 0.4 over the last 2k decisions."
    scores = [one["score"] for one in found["yardsticks"]]
    assert scores == sorted(scores)


def test_a_rating_that_is_not_known_well_is_not_shown(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {
        one["id"]: (one["elo_interval"][1] - one["elo_interval"][0]) / 2
        for one in league_json(run)["players"]
        if one["elo_interval"] is not None and one["role"] == "scripted"
    }
    assert plain(shown(run), "strength")["bots"].keys() == half.keys() == {"random", "alpha_beta_2"}
    monkeypatch.setattr("ludus.observe.strength.WIDE_ELO", max(half.values()) - 1.0)
    found = plain(shown(run), "strength")
    assert [*found["bots"]] == ["random"]  # 0 by definition
    assert {one["player"] for one in found["yardsticks"]} <= half.keys()


def test_players_whose_weights_are_lost_keep_their_records(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    before = {one["id"]: one for one in plain(shown(folder), "league")["players"]}
    names = [*before]
    games = dict(zip(names, plain(shown(folder), "league")["games"], strict=True))
    with closing(folder.ledger()) as ledger:
        ledger.append([PlayerAbsent("main.3", "cut short"), PlayerAbsent("main.4", "cut short")])
    view = shown(folder)
    league = plain(view, "league")
    assert "main.3" not in [one["id"] for one in league["players"]]
    for one in league["lost"]:
        assert one["why"] == "cut short"
        assert one["tags"] == ["weights lost"]
        assert one["decisions"] == before[one["id"]]["decisions"]
        assert one["elo"] == pytest.approx(before[one["id"]]["elo"], abs=1e-6)
        assert one["games"] == pytest.approx(sum(games[one["id"]]), abs=0.5)
    assert [one["id"] for one in league["lost"]] == ["main.3", "main.4"]
    for one in league["players"]:  # games against them count on
        assert one["elo"] == pytest.approx(before[one["id"]]["elo"], abs=1e-6)
    page = plain(view, "player/main.3")
    assert page["line"]["tags"] == ["weights lost"]
    assert {one["player"] for one in page["opponents"]} >= {"main", "random"}
    assert "main.3" in {one["player"] for one in plain(view, "player/main")["opponents"]}
    assert {"player/main.3", "player/main.4"} <= set(view.names())
    told = league_json(folder)["lost_players"]
    assert [(one["id"], one["win_rate"]) for one in told] == [(one["id"], one["win_rate"]) for one in league["lost"]]


def test_every_document_is_there_and_none_has_a_nan(run: RunFolder) -> None:
    view = shown(run)
    names = view.names()
    assert names[:7] == ["overview", "games", "strength", "league", "history", "top", "matches"]
    assert {"player/main", "player/main.2", "player/random"} <= set(names)
    for name in names:
        json.loads(view.encoded(name)[0], parse_constant=pytest.fail)
    with pytest.raises(ViewError, match="no document 'player/nobody'"):
        view.document("player/nobody")


def test_a_player_is_shown_with_its_opponents_and_its_changes(run: RunFolder) -> None:
    player = plain(shown(run), "player/main")
    assert {one["player"] for one in player["opponents"]} >= {"main.2", "main.6"}
    for one in player["opponents"]:
        if one["win_rate"] is not None:
            assert one["low"] <= one["win_rate"] <= one["high"]
    assert sum(one["share"] for one in player["opponents"]) == pytest.approx(1.0)
    assert {curve["name"] for curve in player["metrics"]} >= {"entropy", "policy_loss"}
    assert player["hyper_parameters"]["algorithm"] == "PPO"
    assert player["hyper_parameters"]["algorithm.clip"] == 0.1
    assert player["changes"][0]["settings"] == {"algorithm.clip": 0.1}
    assert player["lineage"][1]["reason"] == "from fresh weights (a test)"
    assert player["children"] == ["main.2", "main.3", "main.4", "main.5", "main.6"]


def test_win_rates_over_time_are_those_of_the_ledger(run: RunFolder) -> None:
    """Added up over all stretches, they are wins and games of the rows."""
    matches, wins, games = {}, Counter[str](), Counter[str]()
    with closing(run.ledger(read_only=True)) as ledger:
        for _, event in ledger.replay():
            if isinstance(event, MatchIssued):
                matches[event.match.id] = [side.players[0] for side in event.match.sides]
            elif isinstance(event, MatchFinished) and "main.2" in matches[event.result.match_id]:
                a, b = matches[event.result.match_id]
                [pair] = event.result.pairs
                if a != b:
                    other = b if a == "main.2" else a
                    wins[other] += (pair.wins if a == "main.2" else pair.losses) + pair.draws / 2
                    games[other] += event.result.episodes
    curves = plain(shown(run), "player/main.2")["over_time"]
    # What main played before it was reset was another main; the snapshot is the same throughout.
    assert {curve["name"] for curve in curves} == set(games)
    for curve in curves:
        rates = [rate for rate in curve["y"] if rate is not None]
        assert min(rates) - 1e-3 <= wins[curve["name"]] / games[curve["name"]] <= max(rates) + 1e-3


def test_matches_come_newest_first_and_filtered(run: RunFolder) -> None:
    view = shown(run)
    everything = msgspec.to_builtins(view.matches(MatchFilter(limit=1000)))["matches"]
    assert [one["id"] for one in everything] == list(range(121, 0, -1))
    assert everything[0]["state"] == "open"
    pages, before = [], None
    while True:
        page = msgspec.to_builtins(view.matches(MatchFilter(limit=50, before=before)))
        pages += page["matches"]
        if (before := page["more"]) is None:
            break
    assert pages == everything
    for filtered, keeps in (
        ({"player": "main.2"}, lambda one: any("main.2" in side["players"] for side in one["sides"])),
        ({"purpose": "human"}, lambda one: one["purpose"] == "human"),
        (
            {"state": "void", "player": "main"},
            lambda one: one["state"] == "void" and any("main" in side["players"] for side in one["sides"]),
        ),
        ({"state": "open"}, lambda one: one["state"] == "open"),
    ):
        found = json.loads(view.filtered_matches({**filtered, "limit": "1000"}))["matches"]
        assert found == [one for one in everything if keeps(one)]
        assert found
    with closing(run.ledger(read_only=True)) as ledger:
        void = next(event for _, event in ledger.replay() if isinstance(event, MatchVoid))
    assert next(one for one in everything if one["id"] == void.match_id)["reason"] == void.reason


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"purpose": "fun"}, "no purpose 'fun'; there are training"),
        ({"state": "lost"}, "no state 'lost'"),
        ({"limit": "0"}, "limit must be from 1 to 1000"),
        ({"before": "x"}, "Expected `int | null`"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(run: RunFolder, asked: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("|", "\\|")):
        shown(run).filtered_matches(asked)


def test_the_overview_says_how_a_training_run_is(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    status = status_of("training", workers=WORKERS, bottleneck=BOTTLENECK, restarts=2)
    write_status(folder.status, status)
    with folder.lock():
        one = plain(shown(folder), "overview")
    assert (one["run"], one["experiment"], one["game"], one["state"]) == (
        "run",
        "connect_four",
        "ConnectFour",
        "training",
    )
    assert not one["ended"]
    assert one["time_left_s"] == pytest.approx(94_000 / 500, rel=0.01)
    assert one["left_by"] == "budget"
    assert [worker["name"] for worker in one["workers"]] == ["controller", "actor-0", "learner"]
    assert one["bottleneck"]["what"] == "game"
    assert one["learners"][0]["lag"] == 1.5
    assert one["learners"][0]["step"] == 6
    assert one["matches"]["finished"] > 100
    assert "2 restarts of workers" in [warning["what"] for warning in one["warnings"]]
    assert all(warning["advice"] for warning in one["warnings"])
    assert {curve["name"] for curve in one["curves"]} >= {"decisions_per_s", "main/entropy", "main/lag"}


def test_a_model_that_a_node_could_not_read_is_told(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    write_status(folder.status, status_of("training"))
    reason = "the model pool's service: no instance of service 'models' within 30 s"
    with (folder.metrics / "faults.jsonl").open("a") as file:
        file.write(json.dumps({"worker": "actor-3", "class": "models_unreachable", "reason": reason}) + "\n")
    with folder.lock():
        warnings = plain(shown(folder), "overview")["warnings"]
    [told] = [one for one in warnings if "could not read a model" in one["what"]]
    assert told["why"] == f"1 faults in all; the last: {reason}"


def test_a_run_whose_process_is_gone_is_called_dead(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    write_status(folder.status, status_of("training", workers=WORKERS))
    one = plain(shown(folder), "overview")
    assert (one["state"], one["ended"], one["workers"]) == ("dead", True, [])
    assert one["warnings"][0]["what"] == "the process that trained this run is gone"


def test_a_pause_between_two_starts_is_no_training(tmp_path: Path) -> None:
    """A start has no speed in its first row."""
    folder = plant(tmp_path / "run")
    rows = [(0, None), (10, 50.0), (20, 50.0), (320, None), (330, 50.0)]
    with (folder.metrics / "train.jsonl").open("w") as file:
        for number, (at, speed) in enumerate(rows):
            known = {} if speed is None else {"decisions_per_s": speed}
            file.write(json.dumps({"decisions": 100 * number, "time": 1000.0 + at, **known}) + "\n")
    assert plain(shown(folder), "overview")["trained_s"] == 30.0


def test_a_run_that_begins_has_not_ended_and_knows_no_time_left(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    folder.status.unlink(missing_ok=True)
    with folder.lock():
        begins = plain(shown(folder), "overview")
        assert (begins["state"], begins["ended"]) == ("starting", False)
        for seconds, left in ((5, None), (600, "time limit")):
            write_status(folder.status, status_of("training", decisions_per_s=0.0, started=time.time() - seconds))
            found = plain(shown(folder), "overview")
            assert (found["time_left_s"] is None) == (left is None)
            assert found["left_by"] == (left or "")


def test_a_run_on_a_read_only_disk_is_shown_and_not_touched(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    copy = tmp_path / "copy"
    shutil.copytree(folder.path, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in copy.rglob("*"))
    try:
        view = shown(RunFolder.open(copy))
        assert plain(view, "league")["players"]
        view.close()
        if os.geteuid() != 0:  # root writes wherever it likes
            assert sorted((str(path), path.stat().st_mtime_ns) for path in copy.rglob("*")) == before
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


def test_without_its_game_a_run_still_has_an_overview(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run", game="placeholder")
    one = plain(shown(folder), "overview")
    assert one["decisions"] == 6000
    concern = one["warnings"][-1]
    assert concern["what"] == "the league cannot be shown"
    assert f"`ludus league {folder.path}` shows the whole error" in concern["advice"]
    with pytest.raises(ViewError, match="the league cannot be shown"):
        shown(folder).document("league")


def test_a_ledger_that_makes_no_sense_is_named_and_spares_the_overview(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    hostile = "<script>alert(1)</script>"
    with closing(folder.ledger()) as ledger:
        ledger.append([PlayerAdded(hostile, "frozen", "main", "main:0:1")])
    view = shown(folder)
    with pytest.raises(ViewError, match=r"row 384 \(player_added\) does not follow .*: player id '<script>"):
        view.document("league")
    view.refresh()
    assert plain(view, "overview")["warnings"][-1]["what"] == "the league cannot be shown"


def test_a_run_that_has_not_started_says_so(tmp_path: Path) -> None:
    planted = plant(tmp_path / "planted")
    folder = RunFolder.create(tmp_path / "new", msgspec.json.decode(planted.facts.experiment), seed=3)
    view = shown(folder)
    assert plain(view, "overview")["state"] == "never started"
    with pytest.raises(ViewError, match="has no players yet: it has not started"):
        view.document("league")


def test_who_asked_too_early_hears_when_there_is_a_league(tmp_path: Path, run: RunFolder) -> None:
    folder = RunFolder.create(tmp_path / "run", msgspec.json.decode(run.facts.experiment), seed=3)
    with closing(RunView(folder)) as view:
        view.refresh()
        with pytest.raises(ViewError):
            view.encoded("league")
        assert view.due() == []
        with run.ledger(read_only=True) as source, folder.ledger() as ledger:
            ledger.append(event for _, event in source.replay())
        view.refresh()
        assert view.due() == ["league"]
        view.encoded("league")
        assert view.due() == []


def test_what_grows_is_followed_and_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "PACE", 0.0)
    folder = plant(tmp_path / "run")
    view = shown(folder)
    first, tag = view.encoded("league")
    assert view.encoded("league") == (first, tag)
    assert view.due() == []
    open_match = view.matches(MatchFilter(state="open"))
    with closing(folder.ledger()) as ledger:
        ledger.append([MatchVoid(msgspec.to_builtins(open_match)["matches"][0]["id"], "stopped")])
    assert view.encoded("league") == (first, tag)
    view.refresh()
    assert view.due() == ["league"]
    second, changed = view.encoded("league")
    assert changed != tag
    assert json.loads(second)["matches"]["open"] == 0
    write_metrics(folder, rows=3, start=30)
    view.encoded("player/main")
    view.refresh()
    assert "player/main" in view.due()


def test_a_costly_document_is_not_made_for_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "PACE", 1e9)
    folder = plant(tmp_path / "run")
    view = shown(folder)
    before = view.encoded("league")
    with closing(folder.ledger()) as ledger:
        ledger.append([MatchVoid(121, "stopped")])
    view.refresh()
    assert view.encoded("league") == before
    assert view.due() == []


def test_long_curves_become_means_of_stretches() -> None:
    x = np.arange(1000.0)
    y = np.where(x < 500, 1.0, 3.0)
    y[:100] = np.nan
    shorter, thin = thinned(x, y, points=10)
    assert shorter.tolist() == [99, 199, 299, 399, 499, 599, 699, 799, 899, 999]
    assert np.isnan(thin[0])
    assert thin[1:].tolist() == [1.0] * 4 + [3.0] * 5


def test_metrics_are_read_on_and_gaps_are_gaps(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    table = MetricsTable(path)
    assert not table.follow()
    path.write_text('{"a": 1}\n{"b": 2.5, "c": "text"}\n{"a": 3}\n{"a"')
    assert table.follow()
    assert not table.follow()
    np.testing.assert_array_equal(table.column("a"), [1, np.nan, 3])
    np.testing.assert_array_equal(table.column("b"), [np.nan, 2.5, np.nan])
    assert table.latest("b") == 2.5
    with path.open("a") as file:
        file.write(": 4}\n")
    assert table.follow()
    assert table.latest("a") == 4


# --- concerns ---


def test_entropy_that_collapses_is_a_concern(tmp_path: Path) -> None:
    for falls in (True, False):
        folder = plant(tmp_path / str(falls))
        (folder.metrics / "train.jsonl").unlink()
        write_metrics(folder, rows=30, entropy_falls=falls)
        table = MetricsTable(folder.metrics / "train.jsonl")
        table.follow()
        found = [one.what for one in concerns_of_metrics(table, ["main"], "RUN")]
        assert found == (["entropy of main has collapsed"] if falls else [])


def test_numbers_that_are_not_finite_are_a_concern(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"main/skipped": 2.0, "main/refused": 0.0, "decisions": 1000}\n')
    table = MetricsTable(path)
    table.follow()
    [found] = concerns_of_metrics(table, ["main"], "RUN")
    assert found.what == "main met numbers that are not finite"
    assert "2 gradient steps" in found.why


def test_many_voids_are_a_concern_and_those_of_a_stop_are_none() -> None:
    counts = Counts(finished=100, void=30)
    [found] = concerns_of_matches(counts, {"env_crash": 20, "restart": 10}, {}, "RUN")
    assert "20 of 120 are void, 20 of them for: env_crash" in found.why
    assert list(concerns_of_matches(counts, {"restart": 20, "stopped": 10}, {}, "RUN")) == []
    assert list(concerns_of_matches(Counts(finished=1000), {"env_crash": 20}, {}, "RUN")) == []


def test_silence_of_a_run_that_trains_is_a_concern(tmp_path: Path) -> None:
    folder = plant(tmp_path / "run")
    write_status(folder.status, status_of("training", time=time.time() - 60))
    with folder.lock():
        one = plain(shown(folder), "overview")
    assert one["silent_s"] == pytest.approx(60, abs=5)
    assert one["warnings"][0]["what"].startswith("no news for")


def test_nobody_who_wants_a_document_waits_for_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant(tmp_path / "run")
    write_status(folder.status, status_of("training"))
    programs = tmp_path / "programs"
    programs.mkdir()
    asked, answer = programs / "asked", programs / "answer"
    waits = f"until [ -e {answer} ]; do sleep 0.01; done"
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\ntouch {asked}\n{waits}\ncat {answer}\n")
    (programs / "nvidia-smi").chmod(0o755)
    view = shown(folder)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with folder.lock():
        looking = threading.Thread(target=view.look)
        looking.start()
        until = time.monotonic() + 20
        while not asked.exists() and looking.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert asked.exists(), "a run that trains is asked about"
        assert plain(view, "overview")["gpus"] == []
        assert looking.is_alive(), "nvidia-smi has not answered"
        answer.write_text("H200, 87, 1024, 143771\n")
        looking.join()
        [gpu] = plain(view, "overview")["gpus"]
        assert gpu["name"] == "H200"

"""Recorded games: what a recording holds, which pairs get one, what it may cost, and games on request."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_runs import small

from ludus.config import ConfigError, encode
from ludus.evaluation import game_recorder
from ludus.evaluation.game_recorder import (
    GameRecorder,
    GamesOnRequest,
    TeamPlayer,
    TooSlow,
    game_line,
    play_game,
    why_not_recorded,
)
from ludus.experiment import Experiment
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.sumo import Sumo
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolated
from ludus.games.remote.engine import Engine
from ludus.league import BoundedHistory, BySteps, LeagueRules, Role
from ludus.league.rules import EvaluationConfig
from ludus.lookup import find_experiment
from ludus.observe.recorded_games import GameFolder, GameRecord
from ludus.runtime.serial import serial_training
from ludus.store.run_folder import RunFolder
from ludus.workers.player_cache import SeatedPlayer

ENGINE = Path(__file__).parents[1] / "games" / "remote" / "bare_engine.py"


def with_bots(source: GameSource, *names: str, seed: int = 3, seconds: float = 60.0) -> GameRecord:
    entrants = [TeamPlayer(name=name, seated=SeatedPlayer(bot=source.bots()[name])) for name in names]
    return play_game(source, entrants, seed=seed, seconds=seconds)


@contextmanager
def patient(seconds: float = 600.0) -> Iterator[None]:
    """However slow this machine is, games are recorded for so many seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game_recorder, "FREE_S", seconds)
        patch.setattr(game_recorder, "SHARE", 1e-9)
        yield


def recorded(path: Path, experiment: Experiment, seconds: float = 600.0) -> tuple[RunFolder, GameRecorder]:
    """A finished run whose evaluations were recorded."""
    folder = RunFolder.create(path, encode(experiment), seed=experiment.seed, command=())
    with patient(seconds), closing(serial_training(experiment, folder)) as training, GameRecorder(training) as recorder:
        training.run()
    return folder, recorder


def kuhn(**evaluation: object) -> Experiment:
    given = {"opponents": ("random",), "past": 1, "ladder": 0, "episodes": 4} | evaluation
    return replace(small(find_experiment("kuhn", {})), evaluation=EvaluationConfig(**given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return recorded(tmp_path_factory.mktemp("recorded") / "run", kuhn())[0]


# --- one game ---


def test_real_numbers_are_told_as_they_are() -> None:
    record = with_bots(Sumo(), "charger", "matador")
    moves = [move for step in record.steps for move in step.done]
    assert len(moves) == record.decisions > 4
    for move in moves:
        assert np.hypot(*map(float, move.name.split())) == pytest.approx(1.0, abs=0.01)
        assert move.options == []


def test_every_stone_of_a_board_is_a_step() -> None:
    record = with_bots(TicTacToe(), "random", "random")
    assert len(record.steps) == record.decisions + 1
    for number, step in enumerate(record.steps):
        assert step.view is not None
        assert sum(stone >= 0 for stone in step.view["stones"]) == number
        assert [move.seat for move in step.done] == ([(number - 1) % 2] if number else [])
    last = record.steps[-1]
    assert last.view is not None
    assert last.view["latest"] == int(last.done[0].name) - 1
    assert record.outcome == "draw" or last.view["line"]


def test_a_game_is_repeated_by_its_seed() -> None:
    assert with_bots(ConnectFour(), "random", "random") == with_bots(ConnectFour(), "random", "random")
    assert with_bots(ConnectFour(), "random", "random") != with_bots(ConnectFour(), "random", "random", seed=4)


def test_all_cards_are_shown() -> None:
    record = with_bots(Kuhn(), "random", "random")
    assert record.steps[0].view is not None
    assert all(hand["card"] for hand in record.steps[0].view["hands"])
    assert record.steps[-1].done[-1].name in ("check", "bet", "fold", "call")


def test_a_game_without_a_drawing_has_its_moves() -> None:
    record = with_bots(Goofspiel(), "random", "random", "random")
    assert all(step.view is None for step in record.steps)
    assert [len(step.done) for step in record.steps[1:]] == [3] * (len(record.steps) - 1)
    assert sum(len(step.done) for step in record.steps) == record.decisions


def test_a_long_game_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = with_bots(Skirmish(), "random", "random")
    monkeypatch.setattr(game_recorder, "FEWEST_STEPS", 20)
    thin = with_bots(Skirmish(), "random", "random")
    assert whole.steps[-1].view is not None
    assert 20 <= len(thin.steps) <= 41 < len(whole.steps)
    assert thin.every > whole.every
    assert thin.steps[0] == whole.steps[0]
    assert thin.steps[-1].view == whole.steps[-1].view
    assert thin.score == whole.score
    for step in thin.steps:
        assert len({move.seat for move in step.done}) == len(step.done) <= 2


def test_a_game_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(TooSlow, match="more than 0 s"):
        with_bots(TicTacToe(), "random", "random", seconds=0.0)


@pytest.mark.parametrize(("turn", "won"), [(0, 0.0), (1, 1.0), (2, 0.0)])
def test_the_result_is_the_snapshots(turn: int, won: float) -> None:
    record = replace_points(with_bots(Goofspiel(), "random", "random", "random"), [-1.0, -1.0, 2.0])
    line = game_line(record, "000001", ("main.1", "a", "b"), turn, 10, 1, 5)
    assert line.seats == [("main.1", "a", "b")[(team + turn) % 3] for team in range(3)]
    assert line.won == won


def replace_points(record: GameRecord, points: list[float]) -> GameRecord:
    return GameRecord(**{name: getattr(record, name) for name in record.__struct_fields__} | {"points": points})


# --- during training ---


def test_one_game_per_snapshot_and_opponent(run: RunFolder) -> None:
    listed = GameFolder(run.path).listed()
    pairs = [tuple(one.players) for one in listed.games]
    assert {("main.1", "random"), ("main.2", "random"), ("main.2", "main.1")} <= {*pairs}
    assert len({*pairs}) == len(pairs)
    assert listed.note == ""
    for one in listed.games:
        record = GameFolder(run.path).read(one.name)
        assert sorted(player.name for player in record.players) == sorted(one.players)
        assert (record.outcome, record.decisions) == (one.outcome, one.decisions)
        for step in record.steps:
            for move in step.done:
                thinks = record.players[move.seat].name != "random"
                assert (move.value is not None) == thinks
                assert sum(p for _, p in move.options) == pytest.approx(float(thinks), abs=0.01)
                assert not thinks or move.name in dict(move.options)


def test_a_resumed_run_keeps_its_games(tmp_path: Path) -> None:
    experiment = kuhn()
    folder, _ = recorded(tmp_path / "run", experiment)
    before = GameFolder(folder.path).listed().games
    longer = replace(experiment, budget=256)
    with patient(), closing(serial_training(longer, folder)) as training, GameRecorder(training) as recorder:
        training.run()
    after = GameFolder(folder.path).listed().games
    assert after[-len(before) :] == before
    assert len(after) == len(before) + recorder.recorded > len(before)


def test_pairs_whose_weights_were_deleted_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for a share of the time, and may wait longer than their players stay in the league."""
    record, trained = GameRecorder._record, threading.Event()
    failed: list[Exception] = []

    def late(self: GameRecorder, due: Any) -> None:
        trained.wait(60.0)
        try:
            record(self, due)
        except Exception as error:
            failed.append(error)
            raise

    monkeypatch.setattr(GameRecorder, "_record", late)
    role = Role(promotion=BySteps(every=64), history=BoundedHistory(size=4, strongest=0, delete_models=True))
    league = LeagueRules(roles={"main": role}, bots=("random",))
    experiment = replace(kuhn(), league=league, budget=1_500, checkpoint_every=100)
    folder = RunFolder.create(tmp_path / "run", encode(experiment), seed=experiment.seed, command=())
    with patient(), closing(serial_training(experiment, folder)) as training, GameRecorder(training) as recorder:
        training.run()
        players = training.league.players
        trained.set()
    gone = [name for name in players if name not in {*training.league.candidates}]
    assert len(gone) > 10
    assert recorder.recorded > 3
    assert len(failed) <= 1, "the pair that it had begun with"
    assert GameFolder(folder.path).listed().note == ""


def test_none_if_none_are_wanted(tmp_path: Path) -> None:
    folder, recorder = recorded(tmp_path / "run", kuhn(recorded_games=0))
    assert recorder.recorded == 0
    assert not (folder.path / "games").exists()


def test_what_costs_too_much_is_left_out(tmp_path: Path) -> None:
    folder, recorder = recorded(tmp_path / "run", kuhn(), seconds=0.0)
    assert recorder.recorded == 0
    assert GameFolder(folder.path).listed().games == []


def test_a_failure_is_told_and_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_recorder, "SLOWEST_S", 0.0)
    folder, recorder = recorded(tmp_path / "run", kuhn())
    assert recorder.recorded == 0
    assert "takes more than 0 s" in GameFolder(folder.path).listed().note
    faults = [json.loads(row) for row in (folder.metrics / "faults.jsonl").read_text().splitlines()]
    assert [fault["class"] for fault in faults] == ["recording"]
    with folder.ledger(read_only=True) as ledger:
        assert ledger.position[0] > 0


NOTED = """
import os, threading
from pathlib import Path

import numpy as np

class Noted:
    def act(self, game, tables, seats, rng):
        with Path(__file__).with_name("acted").open("a") as file:
            file.write(f"{id(self)} {threading.get_ident()}\\n")
        return {name: mask[tables, seats].argmax(-1).astype(np.int32) for name, mask in game.view.legal[0].items()}
"""


def test_a_bot_is_not_shared_with_the_training(tmp_path: Path) -> None:
    """A program that two threads ask at once gives each the answer to the other's request."""
    (tmp_path / "noted.py").write_text(NOTED)
    experiment = kuhn()
    experiment = replace(
        experiment,
        bots={"noted": f"{tmp_path / 'noted.py'}:Noted"},
        league=replace(experiment.league, bots=("noted",)),
        evaluation=replace(experiment.evaluation, opponents=("noted",)),
    )
    _, recorder = recorded(tmp_path / "run", experiment)
    assert recorder.recorded
    lines = {tuple(line.split()) for line in (tmp_path / "acted").read_text().splitlines()}
    assert len(lines) == len({bot for bot, _ in lines}) == len({thread for _, thread in lines}) == 2


def test_games_in_programs_of_their_own_are_not_recorded() -> None:
    assert why_not_recorded(Kuhn()) == ""
    assert "a program of its own" in why_not_recorded(Isolated(game="kuhn"))
    assert "a program of its own" in why_not_recorded(Engine(command=(sys.executable, str(ENGINE))))


# --- on request ---


def test_any_two_players_can_be_watched(run: RunFolder) -> None:
    games = GamesOnRequest(run, trusted=False)
    record = games.play(["main.2", "random"])
    assert [player.name for player in record.players] == ["main.2", "random"]
    assert record.players[0].model
    assert len(record.steps) == record.decisions + 1
    assert games.play(["main", "main@best"]).players[1].model


def test_wrong_players_are_told(run: RunFolder) -> None:
    games = GamesOnRequest(run, trusted=False)
    with pytest.raises(ConfigError, match=r"main\.1"):
        games.play(["main.1x", "random"])
    with pytest.raises(ValueError, match="2 players are needed, not 1"):
        games.play(["main.1"])
    with pytest.raises(ConfigError, match="from 1 to 10,000"):  # it would never make its first move
        games.play([f"main.1?search={10**12}", "random"])
    with pytest.raises(ConfigError, match="from 1 to 10,000"):
        games.play([f"main.1?search={'9' * 60_000}", "random"])


def test_code_inside_of_the_run_folder_is_not_executed(run: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(run.path, path)
    (path / "evil.py").write_text("raise SystemExit('executed')\n")
    facts = json.loads((path / "run.json").read_text())
    facts["experiment"]["bots"] = {"evil": f"{path / 'evil.py'}:Bot"}
    (path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(Exception, match="--trust"):
        GamesOnRequest(RunFolder.open(path), trusted=False).play(["main.1", "random"])

"""The front door: what a person does with `import ludus` alone."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from ludus.config import encode
from ludus.lookup import find_experiment
from ludus.store.run_folder import RunFolder

TINY: dict[str, Any] = {
    "runtime": "serial",
    "quiet": True,
    "learner.batch_size": 1024,
    "actor.num_tables": 32,
    "evaluation.episodes": 32,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of connect four, tiny."""
    path = tmp_path_factory.mktemp("runs") / "four"
    ludus.train("connect_four", budget=3e3, run=path, **TINY, **{"game.all_threats": False})
    return path


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a game whose seats differ, with a memory."""
    path = tmp_path_factory.mktemp("runs") / "siege"
    unmeasured = {"evaluation.opponents": (), "evaluation.past": 0, "evaluation.ladder": 0}  # its episodes are long
    ludus.train("siege", budget=1, run=path, **{**TINY, **unmeasured, "model.memory": 16, "learner.batch_size": 256})
    return path


# --- training ---


def test_train_gives_a_run(folder: Path) -> None:
    run = ludus.Run(folder)
    assert run.status()["state"] == "finished"
    assert run.metrics()[-1]["decisions"] >= 3_000
    assert json.loads((folder / "run.json").read_text())["experiment"]["learner"]["batch_size"] == 1024


def test_an_experiment_a_function_and_a_game_can_be_trained(tmp_path: Path) -> None:
    game = ludus.games.TicTacToe()
    experiment = ludus.Experiment(name="mine", game=game, budget=500, runtime="serial")
    small: dict[str, Any] = {"learner.batch_size": 256, "actor.num_tables": 16, "evaluation.episodes": 2}
    trained: list[Any] = [experiment, lambda: experiment, game]
    for number, what in enumerate(trained):
        run = ludus.train(what, budget=500, runtime="serial", quiet=True, run=tmp_path / str(number), **small)
        assert run.experiment().game == game


def test_a_file_and_a_game_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import ludus\n"
        "def experiment():\n"
        "    return ludus.Experiment(name='mine', game=ludus.games.Kuhn(), budget=300, runtime='serial')\n"
    )
    experiment = ludus.load_experiment(f"{file}:experiment", **{"learner.learning_rate": 1e-4})
    assert experiment.learner.learning_rate == 1e-4
    assert ludus.load_experiment("tic_tac_toe").game == ludus.games.TicTacToe()
    assert ludus.load_experiment("connect_four", game="tic_tac_toe", **{"evaluation.opponents": ["random"]})


def test_a_file_that_trains_when_imported_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import ludus\nludus.train('kuhn')\ndef experiment(): pass\n")
    with pytest.raises(ludus.ConfigError, match="__main__"):
        ludus.load_experiment(f"{file}:experiment")


@pytest.mark.parametrize(
    ("what", "overrides", "message"),
    [
        ("conect_four", {}, "did you mean 'connect_four'"),
        ("connect_four", {"learner.learning_rte": 1.0}, "did you mean 'learner.learning_rate'"),
        ("connect_four", {"budget": "much"}, "budget: expected int"),
        ("mine.py", {}, "which function of it"),
        ("openspeel:hex", {}, "did you mean 'openspiel:hex'"),
        (3, {}, "3 gives 3, neither an Experiment nor a game"),
    ],
)
def test_bad_input_of_train(what: Any, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ludus.ConfigError, match=message):
        ludus.train(what, **overrides)


def test_train_in_a_thread_and_stop_it(tmp_path: Path) -> None:
    path, ended = tmp_path / "run", []

    def train() -> None:
        ended.append(ludus.train("tic_tac_toe", budget=1e8, run=path, **{**TINY, "quiet": True}))

    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 60
    while not (path / "status.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    run = ludus.Run(path)
    run.stop()
    thread.join(60)
    assert ended[0].path == path
    assert run.status()["state"] == "stopped"


def test_ctrl_c_saves_and_raises(tmp_path: Path) -> None:
    path = tmp_path / "run"
    code = (
        "import ludus\n"
        f"ludus.train('tic_tac_toe', budget=1e8, run={str(path)!r}, runtime='serial',\n"
        "            **{'learner.batch_size': 512, 'actor.num_tables': 16, 'evaluation.episodes': 2})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (path / "status.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert "run folder: " in out
    assert "resume=True) goes on" in out
    assert list((path / "checkpoints" / "run").glob("*.safetensors"))
    going_on = ludus.train(run=path, resume=True, budget=1, quiet=True)
    assert going_on.status()["state"] == "finished"


# --- a run ---


def test_the_league_as_the_command_shows_it(folder: Path) -> None:
    league = ludus.Run(folder).league()
    done = subprocess.run(
        [sys.executable, "-m", "ludus.cli.main", "league", str(folder), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(json.dumps(league.to_dict())) == json.loads(done.stdout)
    assert league["random"].role == "scripted"
    assert league.win_rates.shape == (len(league.players),) * 2
    assert "main" in str(league)
    assert "Elo" in repr(league)


def test_evaluate_report_and_exploit(folder: Path, tmp_path: Path) -> None:
    run = ludus.Run(folder)
    measured = run.evaluate("main@best", "random", "rules", games=32, tables=8)
    assert [row["players"][1] for row in measured.rows] == ["random", "rules"]
    assert 0.0 <= measured.win_rate_interval[0] <= measured.win_rate <= 1.0
    assert run.metrics("evaluations")[-1]["source"] == "eval"
    page = run.report(tmp_path / "report.html").read_text()
    assert "connect_four" in page
    with pytest.raises(ludus.ConfigError, match="no exact answer"):
        run.exploit("main", method="exact")


def test_exploit_is_exact_where_the_tree_is_small(tmp_path: Path) -> None:
    run = ludus.train("kuhn", budget=500, run=tmp_path / "kuhn", **{**TINY, "learner.batch_size": 256})
    record = run.exploit("main")
    assert record.exact is not None
    assert record.exact.nash_conv > 0


# --- agents ---


def test_ten_lines_play_a_hundred_games(folder: Path) -> None:
    agent = ludus.load_agent(folder, "main@best")
    bot = ludus.load_agent(folder, "alpha_beta_2", seed=1)
    scores = []
    with ludus.games.Table(ludus.games.ConnectFour()) as table:
        for game in range(100):
            turn = table.reset(seed=game)
            while not turn.over:
                for seat, observation in turn.observations.items():
                    player = agent if seat == game % 2 else bot
                    action = player.act(observation, turn.legal[seat])
                turn = table.step({seat: action})
            scores.append(turn.score[game % 2])  # type: ignore[index]
    assert len(scores) == 100
    assert set(scores) <= {-1.0, 0.0, 1.0}
    assert np.mean(scores) < 0  # it has hardly been trained


def test_a_batch_acts_as_single_rows_do(folder: Path) -> None:
    agent = ludus.load_agent(folder, "main", greedy=True, weights="live")
    table = ludus.games.Table(ludus.games.ConnectFour())
    turns = [table.reset(0), table.step({0: 3}), table.step({1: 3})]
    seen: list[Any] = [next(iter(turn.observations.values())) for turn in turns]
    masks: list[Any] = [next(iter(turn.legal.values())) for turn in turns]
    legal = np.stack(masks)
    stacked = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
    actions, state = agent.act_batch(stacked, legal)
    assert state == {}
    assert actions.tolist() == [agent.act(one, mask) for one, mask in zip(seen, legal, strict=True)]
    assert agent.model.startswith("main:")
    assert agent.spec.name == "connect_four"
    assert agent.player == "main"


def test_real_numbers_are_what_the_game_takes(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "sumo", encode(find_experiment("sumo", ())), seed=0, command=())
    agents = [ludus.load_agent(tmp_path / "sumo", name, seat=seat) for seat, name in enumerate(("matador", "random"))]
    scores = []
    with ludus.games.Table(ludus.games.Sumo()) as table:
        for seed in range(5):
            turn = table.reset(seed)
            while not turn.over:
                chosen = {seat: agents[seat].act(seen) for seat, seen in turn.observations.items()}
                for action in chosen.values():
                    assert (type(action), action.dtype, action.shape) == (np.ndarray, np.float32, (2,))
                turn = table.step(chosen)
            scores.append(turn.score)
        observation: Any = table.reset(0).observations[0]
    assert scores == [[1.0, -1.0]] * 5
    rows = {name: np.stack([array] * 3) for name, array in observation.items()}
    actions, _ = agents[0].act_batch(rows)
    assert (actions.dtype, actions.shape) == (np.float32, (3, 2))


def test_seats_that_differ_and_memory(siege: Path) -> None:
    agent = ludus.load_agent(siege, "main", greedy=True)
    with pytest.raises(ludus.GameError, match="say which seat acts"):
        agent.act(np.zeros(3, np.float32))
    table = ludus.games.Table(ludus.games.Siege())

    def play() -> list[Any]:
        agent.reset()
        turn, actions = table.reset(3), []
        for _ in range(6):
            chosen = {
                seat: agent.act(observation, turn.legal.get(seat), seat=seat)
                for seat, observation in turn.observations.items()
            }
            actions.append(chosen)
            turn = table.step(chosen)
            if turn.over or turn.truncated:
                break
        return actions

    assert play() == play()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"board": np.zeros(7, np.float32)}, r"part 'board': expected float32\[84\], got float32\[7\]"),
        ({"board": None}, "observation lacks part 'board'"),
        ({"bord": np.zeros(84, np.float32)}, "unknown part 'bord'; did you mean 'board'"),
    ],
)
def test_an_observation_that_does_not_fit(folder: Path, change: dict[str, Any], message: str) -> None:
    agent = ludus.load_agent(folder, "main")
    seen = {"board": np.zeros(84, np.float32), "threats": np.zeros(14, np.float32), **change}
    with pytest.raises(ludus.GameError, match=message):
        agent.act(seen)


def test_a_batch_that_does_not_fit(folder: Path) -> None:
    agent = ludus.load_agent(folder, "main")
    seen = {"board": np.zeros((5, 84), np.float32), "threats": np.zeros((4, 14), np.float32)}
    with pytest.raises(ludus.GameError, match=r"'threats': expected float32\[5, 14\], got float32\[4, 14\]"):
        agent.act_batch(seen)
    with pytest.raises(ludus.GameError, match=r"expected float32\[rows, 84\]"):
        agent.act_batch({"board": np.zeros(84, np.float32)})
    right = {"board": np.zeros((5, 84), np.float32), "threats": np.zeros((5, 14), np.float32)}
    with pytest.raises(ludus.GameError, match=r"'move': expected bool\[5, 7\]"):
        agent.act_batch(right, np.ones((5, 6), np.bool_))


def test_bad_input_of_load_agent(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ludus.StoreError, match="no run folder"):
        ludus.load_agent(tmp_path / "nowhere")
    with pytest.raises(ludus.StoreError, match=r"not a run folder, it has no run\.json"):
        ludus.load_agent(tmp_path)
    with pytest.raises(ludus.ConfigError, match="did you mean 'alpha_beta_2'"):
        ludus.load_agent(folder, "alphabeta_2")
    with pytest.raises(ludus.ConfigError, match="did you mean 'best'"):
        ludus.load_agent(folder, "main@bst")
    with pytest.raises(ludus.GameError, match="has no seat 2; seats are 0 to 1"):
        ludus.load_agent(folder, "main", seat=2)
    with pytest.raises(ludus.GameError, match="has no seat '0'; seats are 0 to 1"):
        ludus.load_agent(folder, "main", seat="0")  # type: ignore[arg-type]
    with pytest.raises(ludus.ConfigError, match="did you mean 'average'"):
        ludus.load_agent(folder, "main", weights="avrage")  # type: ignore[arg-type]
    with pytest.raises(ludus.ConfigError, match="unknown player 'zzz'") as refused:
        ludus.load_agent(folder, "zzz")
    assert "alpha_beta_2" in str(refused.value)  # bots are listed too
    assert "\n" not in str(refused.value)
    with pytest.raises(ludus.GameError, match="could not act on an observation alone"):
        ludus.load_agent(folder, "uct_100").act(
            {"board": np.zeros(84, np.float32), "threats": np.zeros(14, np.float32)}
        )


def test_damaged_weights_are_named(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    for weights in (copy / "models" / "main").glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-5] + b"wrong")
    with pytest.raises(ludus.StoreError, match=r"weights of main:.* do not match their digest") as refused:
        ludus.load_agent(copy, "main@best")
    assert "\n" not in str(refused.value)


# --- reading executes nothing ---


@pytest.fixture
def planted(folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run whose game, matchmaking, network and settings name a file that leaves a mark when imported."""
    copy, mark, file = tmp_path / "run", tmp_path / "mark", tmp_path / "evil.py"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    file.write_text(f"open({str(mark)!r}, 'w').close()\n")
    written = json.loads((copy / "run.json").read_text())
    experiment = written["experiment"]
    experiment["game"] = {"type": f"{file}:Game", "size": 3}
    experiment["model"] = {"type": f"{file}:Net"}
    experiment["bots"] = {"evil": f"{file}:Bot"}
    role = experiment["league"]["roles"]["main"]
    role["matchmaking"] = {"type": f"{file}:Rule", "other": {"$ref": f"{file}:function"}}
    role["restart"] = {"type": f"{file}:Restart"}
    role["line_up"] = {"0": {"type": "MetaStrategy", "solver": f"{file}:solver", "over": "all"}}
    (copy / "run.json").write_text(json.dumps(written))
    return copy, mark


def test_reading_a_run_executes_nothing(planted: tuple[Path, Path], tmp_path: Path) -> None:
    path, mark = planted
    run = ludus.Run(path)
    assert "main" in run.players
    league = run.league()
    assert next(one for one in league.to_dict()["players"] if one["id"] == "main")["opponents"] is None
    run.status(), run.metrics(), run.report(tmp_path / "report.html")
    assert "main" in (tmp_path / "report.html").read_text()
    assert not mark.exists()
    with pytest.raises(Exception, match="has no 'Game'"):
        run.experiment()
    assert mark.exists()


@pytest.mark.parametrize("command", ["league", "league --json", "report", "status", "logs", "compare"])
def test_commands_that_read_execute_nothing(planted: tuple[Path, Path], command: str) -> None:
    path, mark = planted
    name, *options = command.split()
    runs = [str(path), str(path)] if name == "compare" else [str(path)]
    code = (
        "import sys; sys.modules['torch'] = None\n" * (name != "compare")
        + f"from ludus.cli.main import main; main({[name, *runs, *options]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if name == "compare" else 0), done.stderr
    assert not mark.exists()
    if name == "compare":
        assert "--trust" in done.stderr


# --- formats ---


def test_a_run_of_an_older_format_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    written = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**written, "format": 1, "ludus": "0.1.0"}))
    with pytest.raises(ludus.StoreError, match=r"has format 1 \(ludus 0\.1\.0\).*train it again"):
        ludus.Run(copy)
    (copy / "run.json").write_text(json.dumps(written))
    with sqlite3.connect(copy / "ledger.db") as ledger:
        ledger.execute("PRAGMA user_version = 1")
    ledger.close()
    with pytest.raises(ludus.StoreError, match="has format 1, this ludus reads format 3"):
        ludus.Run(copy).league()


def test_check_game_takes_an_address_a_class_or_a_game() -> None:
    games: list[Any] = ["tic_tac_toe", ludus.games.TicTacToe, ludus.games.TicTacToe()]
    for game in games:
        assert ludus.check_game(game, episodes=2, tables=2, bot_seconds=0.05).ok
    with pytest.raises(ValueError, match="did you mean 'tic_tac_toe'"):
        ludus.check_game("tic_tac_to")

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Ludus


def test_a_game_is_checked_with_its_options(ludus: Ludus) -> None:
    rates = []
    for number in (2, 4):
        arguments = ("beacon", "--set", f"decisions={number}", "--episodes", "2", "--tables", "1")
        code, out, err = ludus("check", *arguments)
        assert code == 0, err
        tested = [line for line in out.splitlines() if line.endswith("x)")]
        counts = {line.split()[1]: int(line.split("(")[-1].rstrip("x)")) for line in tested}
        rates.append(counts["max_length"] / counts["score"])
    assert rates == [2, 4]  # steps in an episode


@pytest.mark.parametrize(
    ("setting", "named"), [("mode=2v2", "1v1"), ("mod=3v3", "did you mean 'mode'?"), ("3v3", "PATH=VALUE")]
)
def test_a_wrong_option_is_named(ludus: Ludus, setting: str, named: str) -> None:
    code, _, err = ludus("check", "skirmish", "--set", setting)
    assert code == 2
    assert named in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("game", "setting", "hint"),
    [
        ("remote://127.0.0.1:1/kuhn", "seats=3", "options.+seats, or write remote://127.0.0.1:1/kuhn?seats=3"),
        ("remote://127.0.0.1:1/kuhn?a=1", "seats=3", "or write remote://127.0.0.1:1/kuhn?a=1&seats=3"),
        ("openspiel:kuhn_poker", "players=3", "options.+players, or write 'openspiel:kuhn_poker(players=3)'"),
        ("openspiel:goofspiel(num_cards=4)", "players=3", "or write 'openspiel:goofspiel(num_cards=4,players=3)'"),
        ("gymnasium:CartPole-v1", "sutton=true", "; to pass an option on: options.+sutton\n"),
    ],
)
def test_an_option_that_is_to_be_passed_on_says_how(ludus: Ludus, game: str, setting: str, hint: str) -> None:
    library = {"openspiel": "pyspiel", "gymnasium": "gymnasium", "remote": "grpc"}
    pytest.importorskip(library[game.partition(":")[0]])
    code, _, err = ludus("check", game, "--set", setting)
    assert code == 2
    assert f"unknown path '{setting.partition('=')[0]}': the top level has " in err
    assert hint in err


GAME = """
import collections, itertools
import numpy as np
from ludus import ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind, Turn, Vector

KIND = SeatKind(
    name="counter",
    observation=ObservationSpec(parts={"gold": Vector(size=2), "share": Vector(size=1)}),
    action=ActionSpec(heads={"move": Choice(num=2)}),
)

class Coins:
    spec = GameSpec(name="coins", kinds=(KIND,), seats=(0,), teams=(0,), max_length=4, zero_sum=False)

    def reset(self, seed):
        self.turn = 0
        return self.shown()

    def step(self, actions):
        self.turn += 1
        return self.shown()

    def shown(self):
        seen = {"gold": np.array([1.0, 2500.0 * self.turn], np.float32), "share": np.array([0.5], np.float32)}
        over = self.turn == 3
        reward, score = {0: float(self.turn > 0)}, (3.0,) if over else None
        return Turn(observations={} if over else {0: seen}, reward=reward, over=over, score=score)

class Stuck(Coins):
    def step(self, actions):
        collections.deque(itertools.repeat(0), maxlen=0)  # a loop in C: no signal gets through
"""


def test_ranges_of_observations_show_a_wrong_scale(ludus: Ludus, tmp_path: Path) -> None:
    (tmp_path / "coins.py").write_text(GAME)
    out = ludus("check", "coins.py:Coins", "--episodes", "4")[1]
    lines = out.partition("Seen in play, by part of the observation:\n")[2].splitlines()
    assert lines == [
        "  gold   0 to 5000, mean 1.25e+03; large, at [1]: scale it to about -1 to 1",
        "  share  always 0.5",
    ]


def test_a_step_that_hangs_in_c_is_named(tmp_path: Path) -> None:
    (tmp_path / "coins.py").write_text(GAME)
    main = (
        "from ludus.games import checked_play; checked_play.CALL_SECONDS = checked_play.STUCK_SECONDS = 0.3;"
        "from ludus.cli.main import main; main(['check', 'coins.py:Stuck'])"
    )
    done = subprocess.run([sys.executable, "-c", main], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    line = GAME.splitlines().index("class Stuck(Coins):") + 3
    assert f'coins.py", line {line} in step' in done.stderr

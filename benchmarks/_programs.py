"""The trainings that are compared, each with its settings, and the bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = ROOT / ".peers"


@dataclass(frozen=True)
class Program:
    """A training that prints its windows, in the environment of its library."""

    name: str
    library: Literal["ludus", "sb3", "sample_factory"]
    command: tuple[str, ...]
    settings: str

    @property
    def python(self) -> str:
        return sys.executable if self.library == "ludus" else str(ENVIRONMENTS / self.library / "bin/python")

    def line(self, extra: Sequence[str]) -> list[str]:
        return [self.python, str(PROGRAMS / self.command[0]), *self.command[1:], *extra]


@dataclass(frozen=True)
class Bar:
    """Ours must do so many times the frames of the peer, in the same time of that clock; None: only shown."""

    ours: str
    peer: str
    clock: Literal["cpu", "wall"]
    at_least: float | None


_OUR_CARTPOLE = "PPO, 2 x 64 tanh twice, batch 2,048, minibatch 512, 4 epochs, 128 tables, unroll 16"
_OUR_CONNECT_FOUR = "PPO, 2 x 64 tanh shared, batch 16,384, minibatch 4,096, 1 epoch, 512 tables, unroll 16"
_SERIAL, _LOCAL = "one process", "local: learner, 1 actor, controller; lag at most 1"
_SB3 = "PPO, 2 x 64 tanh twice, batch 2,048, minibatch 512, 4 epochs, 1 thread"
_SF = "APPO async, 2 x 64 tanh shared, rollout 32, 2 workers"
ALL = (
    Program("CartPole, Ludus", "ludus", ("ludus_cartpole.py",), f"{_OUR_CARTPOLE}; vector env; {_SERIAL}"),
    Program(
        "CartPole, Ludus, env by env",
        "ludus",
        ("ludus_cartpole.py", "--environments", "single"),
        f"{_OUR_CARTPOLE}; 128 envs one after the other; {_SERIAL}",
    ),
    Program("CartPole, SB3", "sb3", ("sb3_cartpole.py",), f"{_SB3}; DummyVecEnv of 8"),
    Program(
        "CartPole, SB3 with 128 envs",
        "sb3",
        ("sb3_cartpole.py", "--environments", "128"),
        f"{_SB3}; DummyVecEnv of 128, as many as our tables",
    ),
    Program(
        "CartPole, Ludus local",
        "ludus",
        ("ludus_cartpole.py", "--runtime", "local"),
        f"{_OUR_CARTPOLE}; vector env; {_LOCAL}",
    ),
    Program(
        "CartPole, Ludus local, env by env",
        "ludus",
        ("ludus_cartpole.py", "--runtime", "local", "--environments", "single"),
        f"{_OUR_CARTPOLE}; 128 envs one after the other; {_LOCAL}",
    ),
    Program(
        "CartPole, SF",
        "sample_factory",
        ("sf_cartpole.py",),
        f"{_SF} x 16 envs; batch 1,024, 1 epoch: a quarter of our gradient work",
    ),
    Program(
        "CartPole, SF same work",
        "sample_factory",
        ("sf_cartpole.py", "--work", "same"),
        f"{_SF} x 16 envs; 4 minibatches of 512, 4 epochs",
    ),
    Program("Connect four, Ludus", "ludus", ("ludus_connect_four.py",), f"{_OUR_CONNECT_FOUR}; {_SERIAL}"),
    Program(
        "Connect four, Ludus local",
        "ludus",
        ("ludus_connect_four.py", "--runtime", "local"),
        f"{_OUR_CONNECT_FOUR}; {_LOCAL}",
    ),
    Program(
        "Connect four, SF",
        "sample_factory",
        ("sf_connect_four.py",),
        f"{_SF} x 8 envs x 2 seats; PettingZoo raw_env; batch 1,024, 1 epoch",
    ),
)
BARS = (
    *(
        Bar(f"CartPole, Ludus{how}", peer, "cpu", at_least)
        for how in ("", ", env by env")
        for peer, at_least in (
            ("CartPole, SB3", 2.5),
            ("CartPole, SB3 with 128 envs", None),
            ("CartPole, SF", 6.0),
            ("CartPole, SF same work", 6.0),
        )
    ),
    *(
        Bar(f"CartPole, Ludus local{how}", peer, "wall", at_least)
        for how in ("", ", env by env")
        for peer, at_least in (
            ("CartPole, SB3", 4.0),
            ("CartPole, SB3 with 128 envs", None),
            ("CartPole, SF", 4.0),
            ("CartPole, SF same work", 4.0),
        )
    ),
    Bar("Connect four, Ludus", "Connect four, SF", "cpu", 40.0),
    Bar("Connect four, Ludus local", "Connect four, SF", "wall", None),
)

"""A Sample Factory training in a fresh process, measured in windows."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from _windows import Windows
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

NAME = "benchmark"
SETTINGS = (
    "--algo=APPO",
    "--device=cpu",
    "--use_rnn=False",
    "--normalize_input=False",
    "--encoder_mlp_layers",
    "64",
    "64",
    "--nonlinearity=tanh",
    "--actor_critic_share_weights=True",
    "--force_envs_single_thread=True",
    "--rollout=32",
    "--num_workers=2",
    "--worker_num_splits=2",
)
WORK = {
    "published": ("--num_epochs=1", "--batch_size=1024"),
    "same": ("--num_epochs=4", "--batch_size=512", "--num_batches_per_epoch=4"),
}
"""`same` is what Ludus does on CartPole: batches of 2,048 in minibatches of 512, four epochs."""


class Measure(AlgoObserver):  # type: ignore[misc]
    """Frames are those that the learner reports."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if not self._windows.note(sum(runner.env_steps.values())):
            runner.cfg.train_for_env_steps = 0  # it ends where it next asks


def train(make: Callable[..., Any], settings: Sequence[str], arguments: argparse.Namespace) -> None:
    """Train until the windows are full."""
    register_env(NAME, make)
    with tempfile.TemporaryDirectory() as folder:
        place = (f"--env={NAME}", f"--experiment={NAME}", f"--train_dir={folder}")
        given = [*SETTINGS, *settings, *place]
        defaults, _ = parse_sf_args(given)
        _, runner = make_runner(parse_full_cfg(defaults, given))
        runner.register_observer(Measure(Windows(arguments)))
        runner.init()
        runner.run()

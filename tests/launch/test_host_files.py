from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ludus.config import ConfigError
from ludus.launch.hosts import HostFile, SshTraining, read_host_file
from ludus.launch.ray_node import TrainingCommand

GOOD = """
head: 10.0.0.1
processes: 2
hosts:
  - {address: 10.0.0.2, user: me, processes: 16}
  - {address: gpu-1, port: 2222, role: learner, ludus: /opt/ludus/bin/ludus}
"""


def read(tmp_path: Path, text: str) -> HostFile:
    (tmp_path / "hosts.yaml").write_text(text)
    return read_host_file(tmp_path / "hosts.yaml")


def test_what_is_run_where(tmp_path: Path) -> None:
    training = TrainingCommand(experiment="kuhn", run="/runs/kuhn", settings=("budget=5",))
    commands = list(SshTraining(read(tmp_path, GOOD), training, programs="/venv/bin").commands())
    head, first, second, train = map(shlex.split, commands)
    assert head[:3] == ["/venv/bin/ray", "start", "--head"]
    assert '{"ludus_actor": 2}' in head  # the learner is elsewhere
    assert first[:-1] == ["ssh", "-o", "BatchMode=yes", "-p", "22", "-l", "me", "--", "10.0.0.2"]
    assert first[-1] == "ludus join 10.0.0.1:6379 --role actor --token-file - --workers 16"
    assert second[:-1] == ["ssh", "-o", "BatchMode=yes", "-p", "2222", "--", "gpu-1"]
    assert second[-1] == "/opt/ludus/bin/ludus join 10.0.0.1:6379 --role learner --token-file -"
    assert train == [
        *("/venv/bin/ludus", "train", "kuhn", "--run", "/runs/kuhn", "--resume-or-start"),
        *("--runtime", "ray", "--address", "10.0.0.1:6379", "--set", "budget=5"),
    ]


def test_without_a_host_for_it_the_learner_is_here(tmp_path: Path) -> None:
    plan = read(tmp_path, "head: a\nhosts: [{address: b}]")
    head = next(SshTraining(plan, TrainingCommand(experiment="kuhn", run="/r"), programs="/bin").commands())
    assert '{"ludus_learner": 1}' in shlex.split(head)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts", "write `head: ADDRESS`"),
        ("head: a", r"needs 'hosts'|no hosts"),
        ("head: a\nhosts: []", "no hosts; on one machine `ludus train` is enough"),
        ("head: a\nhosts: [b]", "each with `address: NAME`"),
        ("head: a\nhosts: [{adress: b}]", r"hosts\[0\].*did you mean 'address'"),
        ("head: a\nhosts: [{address: b, port: 70000}]", "from 1 to 65535, got 70000"),
        ("head: a\nhosts: [{address: b, role: buffer}]", "buffer"),
        ("head: a\nhosts: [{address: '-oProxyCommand=evil'}]", "not the name of a host"),
        ("head: a\nhosts: [{address: b, user: 'x; rm'}]", "user 'x; rm' is not"),
        ("head: a\nhosts: [{address: b}, {address: b}]", "named twice"),
        ("head: a\nhosts: [{address: b, role: learner}, {address: c, role: learner}]", "one host at most"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)

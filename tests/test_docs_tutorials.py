"""Two tutorials from their first command to their last, with smaller numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Ludus
from doc_blocks import commands, make_files

SMALLER = {
    "train": {
        "budget": "500",
        "runtime": "serial",
        "actor.num_tables": "4",
        "actor.matches": "1",
        "actor.episodes_per_table": "2",
        "learner.batch_size": "200",
        "learner.minibatch_size": "200",
        "league.roles.main.promotion.every": "1000000",
        "evaluation.episodes": "2",
    },
    "clone": {"cloning.minibatch_size": "8"},
    "exploit": {"actor.num_tables": "4", "actor.matches": "1", "learner.batch_size": "200"},
}
OPTIONS = {"record": ("-n", "1"), "clone": ("--epochs", "1"), "exploit": ("--budget", "400")}
"""Instead of what the page says."""
EPISODES = ("-n", "2")
SKIPPED = {
    ("reading-the-league", "compare"): "needs a second league",
    ("from-replays-to-league", "exploit"): "takes minutes however small; tests/evaluation has smaller games",
}


def smaller(words: list[str]) -> list[str]:
    """The command with less to do."""
    name, arguments = words[1], list(words[2:])
    if name in OPTIONS:
        option, value = OPTIONS[name]
        if option in arguments:
            at = arguments.index(option)
            del arguments[at : at + 2]
        arguments += [option, value]
    if name == "eval" and "-n" not in arguments:
        arguments += EPISODES
    if name == "exploit":
        arguments += EPISODES
    for path, value in SMALLER.get(name, {}).items():
        arguments += ["--set", f"{path}={value}"]
    return [name, *arguments]


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", ["reading-the-league", "from-replays-to-league"])
def test_the_commands_of_a_tutorial_lead_from_one_to_the_next(tutorial: str, tmp_path: Path, ludus: Ludus) -> None:
    page = f"docs/tutorials/{tutorial}.md"
    make_files(page, tmp_path)
    for words in commands(page):
        if words[0] == "ludus" and (tutorial, words[1]) not in SKIPPED:
            arguments = smaller(words)
            shown = ludus(*arguments)
            assert shown.code == 0, f"{arguments}: {shown.err}"

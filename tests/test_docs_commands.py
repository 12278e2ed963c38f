"""The commands of the documentation: the real command line understands them, options and values included,
their experiments can be built, and those that are cheap are run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest
from command_line import exit_code
from doc_blocks import commands, commands_of, make_files

from ludus.cli.main import ludus
from ludus.config import ConfigError, apply_overrides
from ludus.experiment import Experiment
from ludus.games.catalog import is_game_address
from ludus.lookup import find_experiment, parse_settings, recipe_names

NOT_BUILT = {
    "mine.py:experiment": "README shows its code above, without a file name",
    "sc2_beacon": "needs StarCraft II and an environment of its own",
    "sc2_simple64": "needs StarCraft II and an environment of its own",
    "my_file.py:experiment": "stands for a file of the reader's",
}
"""Experiment -> why it is not built here."""

FILES_OF_READERS = ("old_bot.py", "map.yaml", "program.yaml")
"""What a command may name that only a reader has."""


def parse(command: click.Command, words: list[str]) -> click.Context:
    """Follow the words down to a command and have it read the rest, as it does before it begins. What is
    unknown, missing or of the wrong type raises."""
    context = click.Context(command, info_name=words[0], **command.context_settings)
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        default = getattr(command, "default", None)  # `ludus study FILE`: short for `ludus study run FILE`
        if found is None and default is not None:
            found, rest = command.get_command(context, default), [default, *rest]
        if found is None:
            raise click.UsageError(f"no command {rest[0]!r}")
        command, context = found, click.Context(found, context, rest[0])
        rest = rest[1:]
    after_run = getattr(command, "after_run", {})  # `ludus league RUN add ...`
    if len(rest) > 1 and rest[1] in after_run:
        command, rest = after_run[rest[1]], rest[2:]
    if "--help" in rest:
        command.make_parser(context).parse_args(rest)
        return context
    return command.make_context(command.name, rest, parent=context.parent)


def of_ludus(page: str) -> list[list[str]]:
    return [words for words in commands(page) if words[0] == "ludus"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", commands_of("ludus"))
def test_commands_are_understood(page: str, tmp_path: Path) -> None:
    make_files(page, tmp_path)
    for words in of_ludus(page):
        try:
            parse(ludus, words)
        except click.ClickException as error:
            pytest.fail(f"{page}: `{shlex.join(words)}`: {error.format_message()}")


def test_wrong_commands_would_be_found() -> None:
    @click.group()
    def root() -> None: ...

    @root.command()
    @click.option("--run")
    @click.option("--runtime", type=click.Choice(["serial", "local"]))
    @click.argument("recipe")
    def train(run: str, runtime: str, recipe: str) -> None: ...

    parse(root, ["ludus", "train", "connect_four", "--run", "x"])
    with pytest.raises(click.UsageError, match="no command 'tran'"):
        parse(root, ["ludus", "tran"])
    with pytest.raises(click.NoSuchOption):
        parse(root, ["ludus", "train", "connect_four", "--rum", "x"])
    with pytest.raises(click.BadParameter, match="'locl' is not one of"):
        parse(root, ["ludus", "train", "connect_four", "--runtime", "locl"])
    with pytest.raises(click.MissingParameter):
        parse(root, ["ludus", "train"])


def settings_of(words: list[str]) -> list[str]:
    """What follows each --set."""
    return [value for option, value in pairwise(words) if option == "--set"]


def experiment_of(words: list[str]) -> str | None:
    """The recipe or address that a command names, if it names one."""
    if words[1] not in ("train", "launch", "recipes") or "--resume" in words:
        return None
    after = {"train": words[2:], "recipes": words[2:], "launch": words[3:]}[words[1]]
    named = [word for word in after if word in recipe_names() or ":experiment" in word or is_game_address(word)]
    return named[0] if named else None


PAGES_WITH_EXPERIMENTS = [page for page in commands_of("ludus") if any(map(experiment_of, of_ludus(page)))]


@pytest.mark.parametrize("page", PAGES_WITH_EXPERIMENTS)
def test_experiments_can_be_built(page: str, tmp_path: Path) -> None:
    make_files(page, tmp_path)
    for words in of_ludus(page):
        address = experiment_of(words)
        if address is None or address in NOT_BUILT:
            continue
        try:
            find_experiment(address, settings_of(words))
        except (ConfigError, ValueError) as error:
            if not is_missing_here(str(error)):
                pytest.fail(f"{page}: `{shlex.join(words)}`: {error}")


def is_missing_here(message: str) -> bool:
    """Whether an error is about a library, a file or a server that a reader has and this machine has not."""
    install = ("pip install", "ludus games --install", "apt-get install", "`ludus serve GAME` starts one")
    programs = ("is not installed, or cannot be run",)
    return any(word in message for word in (*install, *programs, *FILES_OF_READERS))


@cache
def recipes_that_load() -> tuple[Experiment, ...]:
    loaded = []
    for name in recipe_names():
        try:
            loaded.append(find_experiment(name, ()))
        except (ConfigError, ValueError) as error:
            if name not in NOT_BUILT and not is_missing_here(str(error)):
                raise
    return tuple(loaded)


def fit(experiment: Experiment, settings: Sequence[str]) -> bool:
    try:
        apply_overrides(experiment, parse_settings(settings))
    except ConfigError:
        return False
    return True


def changes(words: list[str]) -> Sequence[str]:
    """Settings that a command gives to a run which exists already."""
    if words[1] == "set":
        return [word for word in words[3:] if "=" in word and not word.startswith("-")]
    return settings_of(words) if words[1] in ("train", "exploit") and "--resume" in words else []


@pytest.mark.parametrize("page", [page for page in commands_of("ludus") if any(map(changes, of_ludus(page)))])
def test_settings_of_runs_exist(page: str) -> None:
    """In some recipe: which one the run has, the page does not always say."""
    for words in of_ludus(page):
        settings = changes(words)
        known = any(fit(experiment, settings) for experiment in recipes_that_load())
        assert known or is_missing_here(shlex.join(words)), shlex.join(words)


def is_cheap(words: list[str]) -> bool:
    if "--help" in words or words[1] == "recipes" or words[1:] == ["doctor"]:
        return True
    return words[1:] == ["games"] or (words[1] == "launch" and "--dry-run" in words)


@pytest.mark.parametrize("page", [page for page in commands_of("ludus") if any(map(is_cheap, of_ludus(page)))])
def test_cheap_commands_run(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_files(page, tmp_path)
    for words in filter(is_cheap, of_ludus(page)):
        code = exit_code(*words[1:])
        shown = capsys.readouterr()
        assert code == 0, f"{page}: `{shlex.join(words)}`: {shown.err}"
        assert shown.out

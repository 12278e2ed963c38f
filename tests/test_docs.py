"""The documentation is true: its code runs, its commands parse, its links lead somewhere.

In a page, ```python blocks run in order in one namespace. ```python no-run is only shown;
```python file=NAME.py is written next to the others, for addresses such as NAME.py:Thing.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted(
    page.relative_to(REPOSITORY).as_posix()
    for page in (
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(REPOSITORY / "docs").rglob("*.md"),
    )
)
FENCE = re.compile(r"^```(\w*)[ ]*([^\n`]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
SHELLS = ("console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Block:
    language: str
    options: tuple[str, ...]
    text: str
    line: int
    """Of the first line of the text, counted from 1."""


def blocks(page: str) -> Iterator[Block]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        language, options, code = match.groups()
        yield Block(language, tuple(options.split()), code, text[: match.start(3)].count("\n") + 1)


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command line, without prompts, comments and output."""
    for block in blocks(page):
        if block.language in SHELLS:
            text = block.text.replace("\\\n", " ")
            has_prompt = any(line.startswith("$ ") for line in text.splitlines())
            for line in text.splitlines():
                if line.strip() and (line.startswith("$ ") or not has_prompt):
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                    if words:
                        yield words


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))]
)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A real module, so that classes defined on the page have an address and resolvable annotations.
    module = ModuleType("page_" + re.sub(r"\W", "_", page))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language != "python" or "no-run" in block.options:
            continue
        files = [option.removeprefix("file=") for option in block.options if option.startswith("file=")]
        if files:
            (tmp_path / files[0]).write_text(block.text)
        else:
            padded = "\n" * (block.line - 1) + block.text  # so that a traceback shows the page's line
            exec(compile(padded, str(REPOSITORY / page), "exec"), vars(module))


def command_line() -> click.Command:
    """The `ludus` command."""
    if importlib.util.find_spec("ludus.cli.main") is None:
        pytest.skip("there is no command line to check against")
    module = importlib.import_module("ludus.cli.main")
    groups = [value for value in vars(module).values() if isinstance(value, click.Group)]
    assert groups, "ludus.cli.main holds no click group"
    return groups[0]


def parse(command: click.Command, words: list[str]) -> None:
    """Follow the words down to a command and have it parse the rest; unknown names raise."""
    context = click.Context(command, info_name=words[0])
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"no command {rest[0]!r}")
        command, context = found, click.Context(found, context, rest[0])
        rest = rest[1:]
    after_run = getattr(command, "after_run", {})  # `ludus league RUN add ...`
    if len(rest) > 1 and rest[1] in after_run:
        command, rest = after_run[rest[1]], rest[2:]
        context = click.Context(command, context, "after_run")
    if "--help" not in rest:
        command.make_parser(context).parse_args(rest)


@pytest.mark.parametrize("page", [page for page in PAGES if any(w[0] == "ludus" for w in commands(page))])
def test_commands_parse(page: str) -> None:
    root = command_line()
    for words in commands(page):
        if words[0] == "ludus":
            try:
                parse(root, words)
            except click.ClickException as error:
                pytest.fail(f"{page}: `{shlex.join(words)}`: {error.format_message()}")


def test_wrong_commands_would_be_found() -> None:
    @click.group()
    def root() -> None: ...

    @root.command()
    @click.option("--run")
    @click.argument("recipe")
    def train(run: str, recipe: str) -> None: ...

    parse(root, ["ludus", "train", "connect_four", "--run", "x"])
    with pytest.raises(click.UsageError, match="no command 'tran'"):
        parse(root, ["ludus", "tran"])
    with pytest.raises(click.NoSuchOption):
        parse(root, ["ludus", "train", "connect_four", "--rum", "x"])


@pytest.mark.parametrize("page", [page for page in PAGES if any(w[0] == "make" for w in commands(page))])
def test_make_targets_exist(page: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets


def broken_links(page: str, text: str) -> list[str]:
    """Relative links that lead to no file."""
    targets = [target.partition("#")[0] for target in LINK.findall(FENCE.sub("", text))]
    here = (REPOSITORY / page).parent
    return [
        target
        for target in targets
        if target
        and "://" not in target
        and not target.startswith("mailto:")
        and not (here / target).exists()
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken_links(page, (REPOSITORY / page).read_text(encoding="utf-8")) == []


def test_a_broken_link_would_be_found() -> None:
    assert broken_links("README.md", "[a](docs) [b](docs/nothing.md#x) [c](https://example.org)") == [
        "docs/nothing.md"
    ]

"""The documentation is true: its code runs, its links lead somewhere, its site can be built.

In a page, ```python blocks run in order in one namespace, in a folder that has `examples/`.
```python file=NAME.py is written next to the others, for addresses such as NAME.py:Thing;
```python needs=MODULE runs where that is installed; ```python no-run is only shown, for a reason (`NOT_RUN`).
Its commands are in test_docs_commands.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from doc_blocks import FENCE, PAGES, REPOSITORY, SHELLS, blocks, commands, commands_of, make_files

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")

NOT_RUN = {
    ("README.md", "ludus.train"): "trains for minutes; tests/test_front_door.py makes these calls",
    ("docs/cluster.md", "LoopbackCluster"): "starts three nodes of Ray; tests/cluster runs it",
    ("docs/game-server.md", "wait_game"): "needs a game server; tests/games/remote runs it at one",
    ("docs/game-server.md", "join"): "needs a game server; tests/games/remote runs it at one",
    ("docs/services.md", "ServedModels"): "needs the services of a run; tests/services starts them",
}
"""(page, a word of the block) -> why a Python block is only shown."""

LANGUAGES = {"python", "yaml", "json", "text", "mermaid", "", *SHELLS}


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


@pytest.mark.parametrize("page", pages_with("python"))
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A real module, so that classes defined on the page have an address and resolvable annotations.
    module = ModuleType("page_" + re.sub(r"\W", "_", page))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    make_files(page, tmp_path)
    missing = []
    for block in blocks(page):
        if block.language != "python" or "no-run" in block.options:
            continue
        needed = [option.removeprefix("needs=") for option in block.options if option.startswith("needs=")]
        missing += [library for library in needed if importlib.util.find_spec(library) is None]
        padded = "\n" * (block.line - 1) + block.text  # so that a traceback shows the page's line
        code = compile(padded, str(REPOSITORY / page), "exec")
        if block.file is None and not missing:
            exec(code, vars(module))
    if missing:
        pytest.skip(f"a block needs {', '.join(missing)}")


def test_what_is_not_run_has_a_reason() -> None:
    shown = [(page, block.text) for page in PAGES for block in blocks(page) if "no-run" in block.options]
    unexplained = [(page, text) for page, text in shown if not any(page == at and word in text for at, word in NOT_RUN)]
    assert unexplained == []
    assert len(shown) == len(NOT_RUN), "a reason without a block"


def test_every_block_says_what_it_is() -> None:
    """So that a misspelt ```pyhton is not taken for something that nobody runs."""
    found = {block.language: page for page in PAGES for block in blocks(page)}
    assert set(found) <= LANGUAGES, found


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_yaml_can_be_read(page: str) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("page", pages_with("json"))
def test_json_can_be_read(page: str) -> None:
    for block in blocks(page):
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", commands_of("make"))
def test_make_targets_exist(page: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for words in commands(page):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets


def mentioned_extras(page: str) -> set[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return {extra for group in re.findall(r"ludus\[([\w,]+)\]", text) for extra in group.split(",")}


@pytest.mark.parametrize("page", [page for page in PAGES if mentioned_extras(page)])
def test_extras_exist(page: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert mentioned_extras(page) <= set(project["optional-dependencies"])


def mentioned_programs(page: str) -> set[str]:
    """Python files that a page says to run, in its blocks or its text."""
    return set(re.findall(r"\bpython ([\w/]+\.py)", (REPOSITORY / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [page for page in PAGES if mentioned_programs(page)])
def test_programs_exist(page: str) -> None:
    assert [file for file in mentioned_programs(page) if not (REPOSITORY / file).is_file()] == []


def links(text: str) -> Iterator[str]:
    yield from (target.partition("#")[0] for target in LINK.findall(FENCE.sub("", text)))


def broken_links(page: str, text: str) -> list[str]:
    """Relative links that lead to no file."""
    here = (REPOSITORY / page).parent
    return [
        target
        for target in links(text)
        if target and "://" not in target and not target.startswith("mailto:") and not (here / target).exists()
    ]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert broken_links(page, (REPOSITORY / page).read_text(encoding="utf-8")) == []


def test_a_broken_link_would_be_found() -> None:
    assert broken_links("README.md", "[a](docs) [b](docs/nothing.md#x) [c](https://example.org)") == ["docs/nothing.md"]

"""The blocks of the documentation, and the files that they make."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted(
    page.relative_to(REPOSITORY).as_posix()
    for page in (
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(REPOSITORY / "docs").rglob("*.md"),
    )
)
FENCE = re.compile(r"^```(\w*)[ ]*([^\n`]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
SHELLS = ("console", "sh", "bash", "shell")
VARIABLE = re.compile(r"\w+=")


@dataclass(frozen=True)
class Block:
    language: str
    options: tuple[str, ...]
    text: str
    line: int
    """Of the first line of the text, counted from 1."""

    @property
    def file(self) -> str | None:
        """The file that a reader would put it into."""
        named = [option.removeprefix("file=") for option in self.options if option.startswith("file=")]
        if self.language == "yaml" and (said := re.match(r"# (\S+\.yaml)\n", self.text)):
            named.append(said[1])
        return named[0] if named else None


def blocks(page: str) -> Iterator[Block]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        language, options, code = match.groups()
        yield Block(language, tuple(options.split()), code, text[: match.start(3)].count("\n") + 1)


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command line, without prompts, variables, comments and output."""
    for block in blocks(page):
        if block.language in SHELLS:
            text = block.text.replace("\\\n", " ")
            has_prompt = any(line.startswith("$ ") for line in text.splitlines())
            for line in text.splitlines():
                if line.strip() and (line.startswith("$ ") or not has_prompt):
                    words = _words(line.removeprefix("$ "))
                    while words and VARIABLE.match(words[0]):
                        words = words[1:]
                    if words:
                        yield words


def _words(line: str) -> list[str]:
    """As a shell takes them: only a word that begins with # begins a comment, RUN#PLAYER does not."""
    words = shlex.shlex(line, posix=True, punctuation_chars=False)
    words.whitespace_split, words.commenters = True, ""
    return list(takewhile(lambda word: not word.startswith("#"), words))


def commands_of(program: str) -> list[str]:
    """The pages that show this program."""
    return [page for page in PAGES if any(words[0] == program for words in commands(page))]


def make_files(page: str, folder: Path) -> None:
    """What a reader of the page has in the folder: the examples, and the files that the page shows."""
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)

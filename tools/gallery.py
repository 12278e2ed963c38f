"""Makes the pictures of docs/gallery.md and the report of docs/live-report.md again, by the commands on those pages.

python tools/gallery.py --runs FOLDER     run folders that are already there are not trained again
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("gallery.md", "live-report.md")
PLACES = {".gif": DOCS / "pictures" / "gallery", ".html": DOCS / "figures"}
"""Ending of a file that a command writes -> its folder."""
LARGEST_KB = {".gif": 400, ".html": 1500}
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    for block in SHELL.findall((DOCS / page).read_text(encoding="utf-8")):
        yield from (words for line in block.splitlines() if (words := shlex.split(line, comments=True)))


def run(words: list[str], folder: Path) -> None:
    """Train or play in the folder; copy what was written to its place in docs/."""
    if "--run" in words and (folder / words[words.index("--run") + 1]).exists():
        return
    subprocess.run(words, check=True, cwd=folder)
    for file in (folder / word for word in words if Path(word).suffix in PLACES):
        kilobytes = file.stat().st_size / 1000
        if kilobytes > LARGEST_KB[file.suffix]:
            raise SystemExit(f"{file.name} has {kilobytes:.0f} kB, more than {LARGEST_KB[file.suffix]}")
        copy = Path(shutil.copy(file, PLACES[file.suffix] / file.name))
        if copy.suffix == ".html":  # the report has the command with its path on this machine
            program = shutil.which(words[0]) or words[0]
            copy.write_text(copy.read_text(encoding="utf-8").replace(program, words[0]), encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=Path, required=True, help="where the commands run")
    folder = arguments.parse_args().runs
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        for words in commands(page):
            run(words, folder)


if __name__ == "__main__":
    main()

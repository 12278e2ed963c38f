"""The site of the documentation builds without a broken link, and its reference is what the code says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reference
from doc_blocks import REPOSITORY

pytest.importorskip("mkdocs", reason="pip install -e '.[docs]'")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet would hide warnings from --strict
    command = [*program, "-f", str(config), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("page", list(reference.PAGES))
def test_the_reference_is_up_to_date(page: str) -> None:
    written = (reference.FOLDER / page).read_text(encoding="utf-8")
    assert written == reference.PAGES[page](), "`make reference` writes it anew"


def test_the_reference_has_what_people_look_for() -> None:
    experiment = reference.PAGES["experiment.md"]()
    assert "| `batch_size` | `int` | `16384` | Decisions of one update of a player. |" in experiment
    assert re.search(r"\| `algorithm` \*live\* \| `Algorithm`: .*\[Impala\]\(#impala\).* \| `PPO` \|", experiment)
    assert re.search(r"\| `name` \| `str` \| required \|", experiment)
    commands = reference.PAGES["commands.md"]()
    for words in ("## ludus doctor", "Usage: ludus league [RUN] add", "Usage: ludus launch slurm", "--resume-or-start"):
        assert words in commands
    assert "## connect_four\n" in reference.PAGES["recipes.md"]()


def test_the_site_builds_and_leads_to_the_code(tmp_path: Path) -> None:
    built = build(REPOSITORY / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    tutorial = (tmp_path / "tutorials" / "your-own-game.html").read_text()
    assert 'href="../files/examples/my_game.py.html"' in tutorial
    assert "LiarsDice" in (tmp_path / "files" / "examples" / "my_game.py.html").read_text()
    assert '<span class="filename">nim.py</span>' in tutorial
    asked = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', tutorial)
    assert asked == [], "a page asks nothing of other servers"


def test_broken_links_fail(tmp_path: Path) -> None:
    broken = ("nothing.md", "index.md#nowhere", "../src/nothing.py")
    (tmp_path / "docs").mkdir()
    links = "\n\n".join(f"[a]({target})" for target in broken)
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n{links}\n")
    config = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(config)
    shutil.copytree(REPOSITORY / "tools", tmp_path / "tools")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    for target in broken:
        assert any(f"'{target}'" in warning for warning in warnings), built.stderr

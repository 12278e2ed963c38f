"""The container files, as far as they can be checked without an engine; docs/launch.md says what is built."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.launch.kubernetes import RUNS, USER, KubernetesJob

REPOSITORY = Path(__file__).parent.parent.parent
DEPLOY = REPOSITORY / "deploy"
FILES = sorted(file.name for file in DEPLOY.glob("Containerfile.*"))
KNOWN = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "USER", "ENV", "EXPOSE", "VOLUME", "ENTRYPOINT", "CMD"}


def instructions(name: str) -> list[tuple[str, str]]:
    """(word, what follows) of each instruction, with lines that go on joined."""
    text = (DEPLOY / name).read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and line[0] != "#"]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def values(name: str, word: str) -> list[str]:
    return [rest for found, rest in instructions(name) if found == word]


def test_there_is_an_image_for_each_purpose() -> None:
    assert FILES == ["Containerfile.cpu", "Containerfile.game-server", "Containerfile.gpu"]


@pytest.mark.parametrize("name", FILES)
def test_every_instruction_is_known(name: str) -> None:
    found = instructions(name)
    assert {word for word, _ in found} <= KNOWN
    assert [word for word, _ in found][:2] == ["ARG", "FROM"]
    declared = {rest.partition("=")[0] for rest in values(name, "ARG")}
    used = set(re.findall(r"\$\{(\w+)", " ".join(rest for _, rest in found)))
    assert used <= declared | {"PATH"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_copied_is_there_and_not_ignored(name: str) -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for rest in values(name, "COPY"):
        *sources, _ = rest.split()
        for source in sources:
            assert (REPOSITORY / source).exists()
            assert f"!{source}" in ignored


@pytest.mark.parametrize("name", FILES)
def test_what_is_installed_is_what_we_name(name: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    runs = " ".join(values(name, "RUN"))
    [extras] = [rest.removeprefix("EXTRAS=") for rest in values(name, "ARG") if rest.startswith("EXTRAS=")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert '".[${EXTRAS}]"' in runs
    pinned = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if "torch==" in line]
    if name == "Containerfile.game-server":
        assert "torch==" not in runs
        assert extras == "server"
    else:
        assert pinned[0] in runs.split()


@pytest.mark.parametrize("name", FILES)
def test_nobody_is_root(name: str) -> None:
    assert values(name, "USER") == [str(USER)]
    assert f"useradd --uid {USER}" in " ".join(values(name, "RUN"))


def test_runs_go_to_the_volume() -> None:
    for name in ("Containerfile.cpu", "Containerfile.gpu"):
        assert values(name, "VOLUME") == [RUNS]
        assert values(name, "WORKDIR")[-1] == str(Path(RUNS).parent)  # ludus train writes to runs/ of it


def test_our_code_comes_after_the_dependencies() -> None:
    for name in FILES:
        found = [f"{word} {rest}" for word, rest in instructions(name)]
        copied = next(index for index, line in enumerate(found) if line.startswith("COPY src"))
        assert any("--constraint constraints.txt" in line for line in found[:copied])
        assert "--no-deps" in found[copied + 1]


def test_the_build_script_names_the_images() -> None:
    script = DEPLOY / "build.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    refused = subprocess.run([script, "ghost"], env={**os.environ, "ENGINE": "true"}, capture_output=True, text=True)
    assert refused.returncode == 2
    assert all(name.replace("Containerfile.", "ludus:") in refused.stderr for name in FILES)


def test_the_compose_file_uses_these_images() -> None:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = content["services"]
    assert set(services) == {"head", "node", "game-server"}
    assert services["head"]["image"] == services["node"]["image"] == KubernetesJob.image
    for service in services.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert "ports" not in service  # nothing is reached from outside
        assert service["init"] is True
        assert "stop_grace_period" in service  # some engines kill at once without it
    for service in ("head", "node"):
        assert {"LUDUS_GAME_SERVER", "LUDUS_GAME_TOKEN_FILE"} <= set(services[service]["environment"])
        assert services[service]["secrets"] == ["token"]
    assert services["node"]["command"][:2] == ["join", "head"]
    assert "--resume-or-start" in services["head"]["command"][0]
    assert content["secrets"]["token"] == {"environment": "LUDUS_TOKEN"}

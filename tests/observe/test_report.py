"""The report is one file: it asks nobody for anything, and shows hostile names as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.observe.export import as_csv
from ludus.observe.report import DATA, report_page
from ludus.store.run_folder import RunFolder

HOSTILE = "</script><script>alert(1)</script><!-- '\"&\u2028"
EXPERIMENT = {"name": HOSTILE, "models": {"backend": "redis://someone:secret@127.0.0.1/0"}, "budget": 7}


class Parsed(HTMLParser):
    """Elements with their attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in ("meta", "link"):
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self.elements[self._open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for index in self._open:
            self.elements[index][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [
            "".join(text)
            for name, has, text in self.elements
            if name == tag and all(has.get(key) == value for key, value in attributes.items())
        ]


@pytest.fixture
def page(tmp_path: Path) -> str:
    folder = RunFolder.create(tmp_path / "run", EXPERIMENT, seed=5, command=("ludus", "train", HOSTILE))
    folder = folder.with_experiment(EXPERIMENT | {"budget": 8})
    return report_page(folder, {"overview": {"run": HOSTILE}, "player/x": [1.5, None]})


def test_hostile_names_are_data_and_text(page: str) -> None:
    parsed = Parsed(page)
    [data] = parsed.texts("script", id=DATA)
    assert json.loads(data) == {"overview": {"run": HOSTILE}, "player/x": [1.5, None]}
    assert len(parsed.texts("script")) == 3, "the data, the import map and the one that starts"
    [command] = [text for text in parsed.texts("dd") if text.startswith("ludus train")]
    assert command == f"ludus train {HOSTILE}"


def test_it_loads_nothing_from_anywhere(page: str) -> None:
    parsed = Parsed(page)
    for tag, attributes, _ in parsed.elements:
        for name in ("src", "href", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
    assert not re.search(r"url\((?!['\"]?data:)|@import", "".join(parsed.texts("style")))


def test_every_module_finds_those_that_it_imports(page: str) -> None:
    [text] = Parsed(page).texts("script", type="importmap")
    imports: dict[str, str] = json.loads(text)["imports"]
    assert {"main.js", "source.js", "uPlot.esm.js", "replay.js"} <= imports.keys()
    for name, address in imports.items():
        kind, _, content = address.partition(",")
        assert kind == "data:text/javascript;base64"
        module = base64.b64decode(content).decode()
        for wanted in re.findall(r"""^(?:import|export)\b[^"';]*\bfrom\s*["']([^"']+)""", module, re.MULTILINE):
            assert wanted in imports, f"{name} imports {wanted}"
        assert "./" not in "".join(re.findall(r"^import.*$", module, re.MULTILINE))


def test_only_its_own_scripts_may_run(page: str) -> None:
    parsed = Parsed(page)
    [policy] = [
        attributes["content"]
        for tag, attributes, _ in parsed.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for kind in ("importmap", "module"):
        [script] = parsed.texts("script", type=kind)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_appendix_has_what_is_needed_to_repeat_the_run(page: str) -> None:
    parsed = Parsed(page)
    facts = dict(zip(parsed.texts("dt"), parsed.texts("dd"), strict=True))
    assert facts["seed"] == "5"
    assert {"ludus", "python", "torch", "machine", "created", "command"} <= facts.keys()
    now, before = (yaml.safe_load(text) for text in parsed.texts("pre"))
    assert (now["budget"], before["budget"]) == (8, 7)
    assert now["name"] == HOSTILE
    assert now["models"]["backend"] == "redis://***@127.0.0.1/0"
    assert "secret" not in page


def test_numbers_that_are_not_known_are_empty_cells() -> None:
    rows: Any = [("a,b", None), ('"', 0.1)]
    assert as_csv((("name", "value"), rows)) == 'name,value\n"a,b",\n"""",0.1\n'

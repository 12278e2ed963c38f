"""A run as one HTML file: the pages of `ludus watch` with their documents inside, and how the run was made."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.table import Table

from ludus.observe.view import GAMES, RunView, ViewError
from ludus.store.files import UNREADABLE, atomic_write, read_file
from ludus.store.run_folder import RunFacts, RunFolder
from ludus.system.text import without_logins

STATIC = Path(__file__).parent / "web" / "static"
DATA = "ludus-data"
"""The element in which the scripts look for documents before they ask a server."""
_IMPORT = re.compile(r"""(\b(?:from|import)\s*\(?\s*)(["'])\./([\w.]+\.js)\2""")
_STYLESHEET = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
_ICON = re.compile(r'<link rel="icon" href="([\w.]+)"([^>]*)>')
_MAIN = re.compile(r'<script type="module" src="([\w.]+)"></script>')


MOST_REPLAYS = 20
"""Games of people that the file holds: the newest."""
GAME_BYTES = 1_000_000
"""Of the recorded games in the file, the newest; one is there in any case."""

ReadReplay = Callable[[str], Any]
"""From the name of a recorded game to its document."""


def write_report(
    folder: RunFolder, path: Path, read_replay: ReadReplay, tell: Callable[[str], None] = lambda line: None
) -> Mapping[str, Any]:
    """Write the report and return its documents. `tell` gets a line about each document that is left out."""
    documents = read_documents(folder, read_replay, tell)
    atomic_write(path, report_page(folder, documents).encode(), sync=False)
    return documents


def read_documents(folder: RunFolder, read_replay: ReadReplay, tell: Callable[[str], None]) -> dict[str, Any]:
    """The documents of the pages by name, as plain values. The pages say which one is missing."""
    documents: dict[str, Any] = {}
    with closing(RunView(folder)) as view:
        view.refresh()
        for name in view.names():
            try:
                documents[name] = msgspec.to_builtins(view.document(name))
            except ViewError as error:
                tell(f"without {name}: {error}")
        documents |= _newest_games(view, documents.get(GAMES))
        for replay in view.replays()[:MOST_REPLAYS]:
            try:
                documents[f"replay/{replay}"] = read_replay(replay)
            except (ValueError, OSError) as error:
                tell(f"without the replay {replay}: {error}")
    return documents


def _newest_games(view: RunView, listed: dict[str, Any] | None) -> dict[str, Any]:
    """Recorded games, the newest that fit; the list names only those."""
    found: dict[str, Any] = {}
    if listed is None:
        return found
    room, lines = GAME_BYTES, []
    for line in listed["games"]:
        name = f"game/{line['name']}"
        if name in found:
            continue
        try:
            game = view.game(line["name"])
        except ViewError:  # one that is gone or damaged is not worth the report
            continue
        room -= len(msgspec.json.encode(game)) + len(msgspec.json.encode(line))  # not what the list says
        if found and room < 0:
            break
        found[name] = msgspec.to_builtins(game)
        lines.append(line)
    listed["games"] = lines
    return found


def report_page(folder: RunFolder, documents: Mapping[str, Any], static: Path = STATIC) -> str:
    """The page with its `documents`, by name, as the server of the pages would send them."""
    page = one_file_page(static / "index.html", [static], documents)
    return page.replace("</body>", f"{_appendix(folder)}\n</body>")


def one_file_page(index: Path, folders: Sequence[Path], documents: Mapping[str, Any]) -> str:
    """A page with its scripts, styles and documents inside. `folders`: where the files that it names are."""
    page = index.read_text(encoding="utf-8")
    main = _MAIN.search(page)
    if main is None:
        raise ValueError(f"{index} names no module")

    def found(name: str) -> Path:
        return next(path for folder in folders if (path := folder / name).is_file())

    importmap = json.dumps({"imports": _modules(found, main[1])})
    start = f'import "{main[1]}";'
    page = _STYLESHEET.sub(lambda sheet: f"<style>\n{_style(found(sheet[1]))}</style>", page)
    page = _ICON.sub(lambda icon: f'<link rel="icon" href="{_data_url(found(icon[1]))}"{icon[2]}>', page)
    scripts = (
        f"{_policy(importmap, start)}\n"
        f'<script type="importmap">{importmap}</script>\n<script type="module">{start}</script>'
    )
    page = page.replace(main[0], scripts)
    return page.replace("</body>", f"{_embedded(documents)}\n</body>")


_TABLE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color-scheme: light dark }
img { max-width: 100%; background: white }
table { border-collapse: collapse; margin: 1rem 0 2rem } th, td { padding: 0.2rem 0.8rem; text-align: right }
th { border-bottom: 1px solid } th:first-child, td:first-child { text-align: left }
"""


def write_tables_page(path: Path, title: str, tables: Sequence[Table], pictures: Sequence[bytes] = ()) -> None:
    """Write tables, and pictures in SVG, as one HTML file that opens anywhere."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>',
        f"<style>{_TABLE_STYLE}</style><h1>{html.escape(title)}</h1>",
    ]
    for table in tables:
        heads = "".join(f"<th>{html.escape(str(column.header))}</th>" for column in table.columns)
        rows = [
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
            for cells in zip(*(column.cells for column in table.columns), strict=True)
        ]
        parts += [f"<table><thead><tr>{heads}</tr></thead><tbody>", *rows, "</tbody></table>"]
        parts += [f"<p>{html.escape(str(table.caption))}</p>"] if table.caption else []
    parts += [f'<img alt="" src="{_encoded(picture, "image/svg+xml")}">' for picture in pictures]
    atomic_write(path, ("\n".join(parts) + "</html>\n").encode(), sync=False)


def _policy(*scripts: str) -> str:
    """The file may run its own scripts, and load nothing from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    policy = f"default-src 'none'; script-src data: {allowed}; style-src 'unsafe-inline'; img-src data:"
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _modules(find: Callable[[str], Path], main: str) -> dict[str, str]:
    """Every module that the page needs as an address that holds its text, for the page's import map."""
    found: dict[str, str] = {}
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = find(name).read_text(encoding="utf-8")
        waiting += [match[3] for match in _IMPORT.finditer(text)]
        found[name] = _encoded(_IMPORT.sub(r"\1\2\3\2", text).encode(), "text/javascript")
    return found


def _embedded(documents: Mapping[str, Any]) -> str:
    text = without_logins(msgspec.json.encode(documents).decode())
    # JSON may write any character as a number: whatever a player is called, it cannot end the element.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{DATA}">{text}</script>'


def _appendix(folder: RunFolder) -> str:
    """The command, seed, versions and experiment of the run, as needed to repeat it."""
    facts = folder.facts
    rows = {
        "run": folder.path.resolve().name,
        "created": facts.created,
        "command": " ".join(facts.command),
        "seed": str(facts.seed),
        "ludus": facts.ludus + (f", commit {facts.commit}" if facts.commit else ""),
        "python": facts.python,
        "torch": facts.torch or "not recorded",
        "machine": facts.machine or "not recorded",
        "report": f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by ludus report",
    }
    lines = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows.items())
    experiments = [("The experiment", msgspec.json.decode(facts.experiment))]
    for path in sorted(folder.path.glob("run.*.json")):
        with suppress(OSError, *UNREADABLE):  # an old one that is damaged is not worth the report
            before = msgspec.json.decode(read_file(path), type=RunFacts)
            title = f"The experiment before change {path.stem.partition('.')[2]}"
            experiments.append((title, msgspec.json.decode(before.experiment)))
    whole = "\n".join(
        f"<details><summary>{_text(title)}</summary>\n<pre>{_text(_as_yaml(tree))}</pre></details>"
        for title, tree in experiments
    )
    return (
        "<style>#appendix { max-width: 84rem; margin: 0 auto; padding: 0 1rem 1rem }\n"
        "#appendix pre { overflow-x: auto }\n"
        "@media (max-width: 40rem) { #appendix { padding: 0 0.6rem 0.6rem } }</style>\n"
        '<footer id="appendix"><section class="panel">\n<h2>Appendix: what the run was made with</h2>\n'
        f'<dl class="facts">\n{lines}\n</dl>\n{whole}\n</section></footer>'
    )


def _as_yaml(experiment: Any) -> str:
    text: str = yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True, width=100)
    return text


def _text(value: str) -> str:
    return html.escape(without_logins(value))


def _style(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("</", "<\\/")


def _data_url(path: Path) -> str:
    kinds = {".svg": "image/svg+xml", ".png": "image/png"}
    return _encoded(path.read_bytes(), kinds[path.suffix])


def _encoded(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"

"""What the site needs beyond the pages of docs/: the files of the repository that they link to, page by page,
and headings of code blocks. MkDocs calls these functions while it builds."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
SHOWN = "files"
"""Folder of the site for files from elsewhere in the repository."""
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^```(\w+)[ ]+([^\n`]+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```[ ]*$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
PICTURES = (".png", ".svg", ".gif")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Patterns of `nav` become the pages that they stand for, but for those named elsewhere."""
    docs = Path(config.docs_dir)
    named = set(_named(config.nav))
    config.nav = _expanded(config.nav, docs, named)
    return config


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif nav is not None:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _named(part)


def _expanded(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(part, docs, named) for title, part in nav.items()}
    if not isinstance(nav, list):
        return nav
    pages: list[Any] = []
    for part in nav:
        if isinstance(part, str) and "*" in part:
            found = sorted(page.relative_to(docs).as_posix() for page in docs.glob(part))
            pages += [page for page in found if page not in named]
        else:
            pages.append(_expanded(part, docs, named))
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page for each file outside of docs/ that a page links to."""
    for page in list(files.documentation_pages()):
        for target in LINK.findall(CODE.sub("", page.content_string)):
            outside = _outside(page.src_uri, target[1])
            if outside is not None:
                for file in (outside, *_inside_of(outside)):
                    _add(files, file, config)
    return files


def _outside(page: str, target: str) -> str | None:
    """The path in the repository that a link leads to, if it leaves docs/ and there is such a file."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if "://" in target or path.startswith(("docs", "..")) or not (REPOSITORY / path).exists():
        return None
    return path


def _inside_of(path: str) -> list[str]:
    folder = REPOSITORY / path
    if not folder.is_dir():
        return []
    return sorted(one.relative_to(REPOSITORY).as_posix() for one in folder.iterdir() if one.suffix in LANGUAGES)


def _shown(path: str) -> str:
    """Where a file of the repository is among the sources of the site."""
    return f"{SHOWN}/{path}" if PurePosixPath(path).suffix in PICTURES else f"{SHOWN}/{path}.md"


def _add(files: Files, path: str, config: MkDocsConfig) -> None:
    source = REPOSITORY / path
    if files.get_file_from_path(_shown(path)) is not None:
        return
    if source.is_dir():
        names = [posixpath.relpath(one, path) for one in _inside_of(path)]
        base = posixpath.basename(path)
        text = "\n".join(f"- [{name}]({base}/{name}.md)" for name in names)
    elif source.suffix in PICTURES:
        files.append(File.generated(config, _shown(path), abs_src_path=str(source)))
        return
    else:
        text = f"````{LANGUAGES.get(source.suffix, 'text')}\n{source.read_text(encoding='utf-8')}\n````"
    content = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{text}\n"
    aside = InclusionLevel.NOT_IN_NAV
    files.append(File.generated(config, _shown(path), content=content, inclusion=aside))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files elsewhere lead to their pages; a code block with a file name has it as its heading."""
    here = page.file.src_uri
    if here.startswith(f"{SHOWN}/"):
        return markdown
    pieces = []
    end = 0
    for block in CODE.finditer(markdown):
        pieces += [_with_links(markdown[end : block.start()], here), FENCE.sub(_heading, block[0])]
        end = block.end()
    return "".join([*pieces, _with_links(markdown[end:], here)])


def _with_links(text: str, here: str) -> str:
    def changed(match: re.Match[str]) -> str:
        outside = _outside(here, match[2])
        if outside is not None:
            return f"{match[1]}{os.path.relpath(_shown(outside), posixpath.dirname(here))}{match[3]}"
        folder = REPOSITORY / "docs" / posixpath.dirname(here) / match[2]
        if "://" not in match[2] and folder.is_dir():
            first = min(one.name for one in folder.glob("*.md"))
            return f"{match[1]}{match[2].rstrip('/')}/{first}{match[3]}"
        return match[0]

    return LINK.sub(changed, text)


def _heading(match: re.Match[str]) -> str:
    """The options of a block are for its test; the name of its file is for readers too."""
    names = [option.removeprefix("file=") for option in match[2].split() if option.startswith("file=")]
    return f'```{match[1]} title="{names[0]}"' if names else f"```{match[1]}"

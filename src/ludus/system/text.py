"""Text from outside, made safe to show: without passwords, and without characters that control a terminal.

Names, reasons and errors come from games, bots, servers and files. A terminal obeys the escape codes in them. A page or
a file may be read by more people than may know a password."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECRET = ("KEY", "TOKEN", "PASSWORD", "SECRET")
"""Environment variables with these words in their names are never shown."""
LONGEST_REASON = 4_000
"""Characters of a reason that is kept: a bot or a game may give 60 MB, once for each match."""
_LOGIN = re.compile(r"://[^/\s\"\\]+@")
"""Up to the last @ of what names the host: a password may hold one."""
_LOGIN_OPTION = re.compile(r"([?&](?:username|password)=)[^&\s\"\\#]+")
_CONTROLS = dict.fromkeys(
    (
        *(code for code in range(0x20) if chr(code) not in "\t\n"),
        *range(0x7F, 0xA0),
        *(0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # the direction of writing
    ),
    "\N{REPLACEMENT CHARACTER}",
)


def printable(text: str) -> str:
    """Without characters that control a terminal; lines and tabs stay."""
    return text.translate(_CONTROLS)


def shortened(text: str, longest: int = LONGEST_REASON) -> str:
    """Without its middle if it is long: the end of a traceback says most."""
    if len(text) <= longest:
        return text
    half = (longest - len(" ... ")) // 2
    return f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"


def without_secrets(text: str) -> str:
    """Without keys that the environment holds, and without logins."""
    for name, value in os.environ.items():
        if len(value) >= 8 and any(mark in name.upper() for mark in SECRET):
            text = text.replace(value, "***")
    return without_logins(text)


def without_logins(text: str) -> str:
    """Without names and passwords in addresses: redis://NAME:PASSWORD@HOST, or redis://HOST?password=PASSWORD."""
    return _LOGIN_OPTION.sub(r"\1***", _LOGIN.sub("://***@", text))


class PrintableStream:
    """A stream through which only printable text is written. Rich, which writes escape codes of its own, writes to the
    stream behind it; `observe.terminal.SafeConsole` makes its text printable."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        with self._named():
            self.rich_proxied_file.write(printable(text))
        return len(text)

    def flush(self) -> None:
        with self._named():
            self.rich_proxied_file.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error, as on a full disk, names the stream."""
        try:
            yield
        except OSError as error:
            error.filename = getattr(self.rich_proxied_file, "name", None)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

"""Options of the commands that serve a page: its address and its access token."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from ludus.config import ConfigError
from ludus.system.machine import install_command
from ludus.system.network import TokenError, read_token_file

if TYPE_CHECKING:
    from ludus.observe.web.page_server import PageAccess

_Command = TypeVar("_Command", bound=Callable[..., object])


def page_options(command: _Command) -> _Command:
    """Adds --host, --port, --token-file, --name and --open; the command takes them as host, port, token_file,
    names and open_browser."""
    for option in (
        click.option("--open/--no-open", "open_browser", default=None,
                     help="Show it in a browser here; default: if there is a screen."),
        click.option("--name", "names", multiple=True, metavar="NAME",
                     help="A further name that the page may be asked for by, as behind a proxy."),
        click.option("--token-file", type=click.Path(),
                     help="A file with a secret token; the page asks for it."),
        click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any that is free."),
        click.option("--host", default="127.0.0.1", show_default=True,
                     help="Where to listen. Another address than this machine's own needs --token-file."),
    ):  # fmt: skip
        command = option(command)
    return command


def read_access(host: str, token_file: str | None, names: tuple[str, ...]) -> PageAccess:
    """The access that the options describe. Raises ConfigError with the option to change."""
    try:
        from ludus.observe.web.page_server import PageAccess, UnsafeAddressError, known_names
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name!r} is not installed; {install_command('web')} adds it") from error
    try:
        token = None if token_file is None else read_token_file(token_file)
        return PageAccess(host=host, token=token, names=known_names(names))
    except (TokenError, UnsafeAddressError) as error:
        raise ConfigError(str(error)) from error


def show_in_browser(url: str, wanted: bool | None) -> None:
    """Open the page. Without a screen or a browser nothing happens; the address has been printed."""
    has_screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if wanted or (wanted is None and has_screen and sys.stdout.isatty()):
        webbrowser.open(url)

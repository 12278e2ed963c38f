"""Options that several commands share, and the page that some of them serve."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from ludus.config import ConfigError, as_config_error
from ludus.store.run_folder import trusts_runs
from ludus.system.machine import install_command
from ludus.system.network import TokenError, read_token_file

if TYPE_CHECKING:
    from ludus.observe.web.page_server import PageAccess

Command = TypeVar("Command", bound=Callable[..., Any])
Weights = Literal["live", "average"]

COUNT, AT_LEAST_0 = click.IntRange(min=1), click.IntRange(min=0)
SECONDS, ABOVE_0 = click.FloatRange(min=0.0), click.FloatRange(min=0, min_open=True)
OUTCOME = click.Choice(["win", "draw", "loss"])
FOLDER = click.Path(file_okay=False, path_type=Path)

weights_option = click.option(
    "--weights", type=click.Choice(["live", "average"]), default="average", help="Which weights a learning player uses."
)
greedy_option = click.option("--greedy", is_flag=True, help="Always the most probable action.")
tables_option = click.option("--tables", type=COUNT, default=64, help="Tables played at the same time.")
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0)
address_option = click.option(
    "--address", help="A Ray cluster, HOST:PORT or auto; without one, --runtime ray starts a private one."
)
code_trust_option = click.option(
    "--trust",
    is_flag=True,
    expose_value=False,
    callback=lambda context, option, trusts: trusts_runs.set(True) if trusts else None,
    help="Import code and start programs that lie inside the run folder.",
)
trust_option = click.option("--trust", is_flag=True, help="Show replays of a game of your own: imports the run's code.")


def set_option(help: str = "Change a setting; may be repeated.", *, of: str = "PATH") -> Callable[[Command], Command]:
    return click.option("--set", "settings", multiple=True, metavar=f"{of}=VALUE", help=help)


def json_option(help: str = "Print JSON.") -> Callable[[Command], Command]:
    return click.option("--json", "as_json", is_flag=True, help=help)


def together(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator that adds all options, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


page_options = together(
    click.option("--host", default="127.0.0.1", help="Address to listen on; other machines need --token-file."),
    click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="any that is free"),
    click.option("--token-file", type=click.Path(), help="A file with a secret token; the page asks for it."),
    click.option("--name", "names", multiple=True, help="A further name of the page, as behind a proxy."),
    click.option("--open/--no-open", "open_browser", default=None, help="In a browser; default: if there is a screen."),
)


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The values of `page_options`."""

    host: str
    port: int
    token_file: str | None
    names: tuple[str, ...]
    open_browser: bool | None

    def access(self) -> PageAccess:
        """The access that the options describe. Raises ConfigError with the option to change."""
        try:
            from ludus.observe.web.page_server import PageAccess, UnsafeAddressError, known_names
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name!r} is not installed; {install_command('web')} adds it") from error
        with as_config_error(TokenError, UnsafeAddressError):
            token = None if self.token_file is None else read_token_file(self.token_file)
            return PageAccess(host=self.host, token=token, names=known_names(self.names))

    @contextmanager
    def serving(self, app: Any, access: PageAccess, greeting: str) -> Iterator[None]:
        """Serve `app` during the block. `greeting` is printed with the address in place of URL."""
        from ludus.observe.web.page_server import PageServer

        with closing(PageServer(app, access, port=self.port)) as server:
            server.start()
            click.echo(greeting.replace("URL", server.url))
            if access.token is not None:
                click.echo("  it asks for the token; what it shows travels in the clear, `ssh -L` hides it")
            sys.stdout.flush()
            # Without a screen or a browser nothing happens: the address has been printed.
            has_screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
            if self.open_browser or (self.open_browser is None and has_screen and sys.stdout.isatty()):
                webbrowser.open(server.url)
            yield

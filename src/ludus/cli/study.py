"""`ludus study`: one experiment under several settings and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ludus.cli.main import FAILED
from ludus.cli.options import COUNT, FOLDER, json_option
from ludus.config import ConfigError
from ludus.data.addresses import load_address
from ludus.lookup import loading
from ludus.observe.study_results import StudyResults
from ludus.observe.terminal import new_console
from ludus.study import Study


class StudyCommands(click.Group):
    """`study FILE` is short for `study run FILE`."""

    default = "run"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = next((word for word in args if not word.startswith("-")), None)
        if named is not None and named not in self.commands:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@click.group("study", cls=StudyCommands)
def study_command() -> None:
    """Train several settings and seeds of one experiment, and compare them. `ludus study FILE` is short for
    `ludus study run FILE`."""


@study_command.command("run", short_help="train and measure what is not done yet")
@click.argument("file", metavar="FILE.yaml|FILE.py:NAME")
@click.option("--into", type=FOLDER, help="Folder of the study; default: studies/NAME OF THE FILE.")
@click.option("--parallel", type=COUNT, show_default="as the cores allow", help="Runs at the same time.")
@click.option("--address", help="Train on the nodes of a Ray cluster, HOST:PORT or auto; default: on this machine.")
@click.option("--quiet", is_flag=True, help="Show nothing until the end.")
@json_option("The results as one JSON object.")
@click.option("--trust", is_flag=True, help="Import code that lies inside of the folder.")
def run_command(
    file: str, into: Path | None, parallel: int | None, address: str | None, quiet: bool, as_json: bool, trust: bool
) -> int:
    """Train every setting with every seed, side by side, measure each run, and show means with intervals. FILE.yaml
    has the fields of `ludus.Study`; FILE.py:NAME is a Study, or a function that returns one.

    The same command goes on with a study that was stopped or killed. It tries runs again that have failed, and may
    have more seeds or settings than before.
    """
    study = _load(file)
    folder = into or Path("studies") / Path(file.rpartition(":")[0] or file).stem
    results = study.run(folder, parallel=parallel, address=address, quiet=quiet or as_json, trust=trust)
    _show(results, as_json)
    return FAILED if results.failures else 0


@study_command.command("show", short_help="show the results so far")
@click.argument("study", type=FOLDER)
@click.option("--plot", metavar="FILE.png|svg|html|csv", help="Write the curves of all runs.")
@click.option("--metric", help="Which metric to plot; default: main/nash_conv or main/episode_score.")
@json_option("Everything as one JSON object.")
def show_command(study: Path, plot: str | None, metric: str | None, as_json: bool) -> None:
    """Show the mean and the interquartile mean of every setting over its seeds, with 95 % intervals, and failed runs
    with their logs."""
    results = StudyResults(study)
    if metric is not None and plot is None:
        raise click.UsageError("--metric is for curves: add --plot FILE.png")
    if plot is not None:
        click.echo(f"curves: {results.plot(plot, metric)}", err=True)
    _show(results, as_json)


def _load(file: str) -> Study:
    if file.endswith((".yaml", ".yml")):
        return Study.load(file)
    if ":" not in file:
        raise ConfigError(f"{file}: a study is FILE.yaml, or FILE.py:NAME of a Study or a function that returns one")
    with loading(file):
        found = load_address(file)
        made = found() if callable(found) else found
    if not isinstance(made, Study):
        raise ConfigError(f"{file} gives a {type(made).__name__}, not a Study")
    return made


def _show(results: StudyResults, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(results.to_dict()))
        return
    new_console().print(str(results), markup=False, soft_wrap=True)

"""`ludus export`: a player of a run as ONNX or JSON, as difficulty levels, or as a page that plays by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ludus.cli.options import ABOVE_0, COUNT, Weights, code_trust_option, json_option, weights_option
from ludus.lookup import open_run
from ludus.models.policy import use_threads

if TYPE_CHECKING:
    from ludus.export.files import Exported


@click.command("export")
@click.argument("run", type=click.Path())
@click.argument("player", required=False)
@click.option("--to", type=click.Path(path_type=Path), help="A file that ends in .onnx or .json, or a folder.")
@click.option("--logits", is_flag=True, help="Add the masked logits of every head to the outputs.")
@click.option("--value", is_flag=True, help="Add the critic's estimate to the outputs.")
@click.option("--ladder", is_flag=True, help="Write snapshots of PLAYER as difficulty levels into the folder --to.")
@click.option("--levels", type=COUNT, default=5, help="With --ladder: how many.")
@click.option("--tolerance", type=ABOVE_0, default=1e-5, help="Largest difference of an output from the player's.")
@click.option("--page", type=click.Path(path_type=Path), help="Write one HTML file on which people play the agent.")
@weights_option
@json_option("Print the manifest, or the levels, as JSON.")
@code_trust_option
def export_command(
    run: str,
    player: str | None,
    to: Path | None,
    logits: bool,
    value: bool,
    ladder: bool,
    levels: int,
    tolerance: float,
    page: Path | None,
    weights: Weights,
    as_json: bool,
) -> None:
    """Take PLAYER of RUN out of Ludus. PLAYER is named as in `ludus eval`; default: the best snapshot of the
    first learning player.

    The agent becomes an ONNX file with a manifest and a model card beside it. Before it is written, the file is
    compared with the player on random and played observations. `ludus.load_agent("agent.onnx")` plays it with
    onnxruntime alone, and so do `ludus eval` and `ludus play`, which take the file as a player.

    A file that ends in .json holds the plain numbers of a small network, for a program that evaluates it itself.

    \b
    ludus export runs/mine main@best --to agent.onnx
    ludus export runs/mine main --ladder --levels 4 --to levels
    ludus export runs/mine main@best --to agent.json
    ludus export runs/mine main@best --page connect_four.html
    """
    if to is None and page is None:
        raise click.UsageError("say what to write: --to agent.onnx, or --page FILE.html")
    if ladder and to is not None and to.suffix:
        raise click.UsageError(f"--ladder writes several files: name a folder with --to instead of {to}")
    use_threads(1)
    folder = open_run(run)
    chosen = player or _usual_player(folder.path)
    learner = chosen.partition("@")[0]
    if to is not None and to.suffix == ".json":
        from ludus.export.page import export_network

        if logits or value:
            raise click.UsageError("--logits and --value are for .onnx files: a .json file holds the network itself")
        export_network(folder, chosen, to, weights=weights)
        click.echo(f"network:  {to} ({to.stat().st_size / 1000:,.0f} kB)", err=as_json)
    elif to is not None:
        from ludus.export.files import export_ladder, export_player

        def tell(exported: Exported) -> None:
            if not as_json:
                _show(exported)

        how: dict[str, Any] = {"logits": logits, "value": value, "tolerance": tolerance}
        if ladder:
            made = export_ladder(folder, learner, to, levels=levels, tell=tell, **how)
            click.echo(json.dumps(made.document) if as_json else f"levels:   {made.file}")
        else:
            exported = export_player(folder, chosen, to, weights=weights, **how)
            tell(exported)
            if as_json:
                click.echo(json.dumps(exported.manifest))
    if page is not None:
        from ludus.export.page import export_page
        from ludus.export.player import choose_snapshots

        players = choose_snapshots(folder, learner, levels) if ladder else [chosen]
        export_page(folder, players, page, weights=weights)
        click.echo(f"page:     {page} ({page.stat().st_size / 1000:,.0f} kB)", err=as_json)


def _usual_player(run: Path) -> str:
    """The best snapshot of the first learning player; the player itself before any was measured."""
    from ludus.run import Run

    members = Run(run).league().players
    learner = next(one.id for one in members if one.lineage is not None)
    return f"{learner}@best" if any("best" in one.tags and one.parent == learner for one in members) else learner


def _show(exported: Exported) -> None:
    facts, parity = exported.facts, exported.parity
    rating = facts.rating
    elo = "" if rating is None else f", Elo {rating['elo']:+.0f} ({rating['low']:+.0f} to {rating['high']:+.0f})"
    click.echo(f"player:   {facts.id}, {facts.decisions:,} decisions{elo}")
    for file in exported.files:
        click.echo(f"file:     {file} ({file.stat().st_size / 1000:,.0f} kB)")
    beside = f", {exported.card}" if exported.card is not None else ""
    click.echo(f"beside:   {exported.manifest_file}{beside}")
    for output, largest in parity.largest.items():
        click.echo(f"check:    {output} differs by at most {largest:.2g}")
    for output, drift in parity.drift.items():
        click.echo(f"check:    {output} drifts by at most {drift:.2g} when it is carried along")
    ties = f", {parity.ties} of them at a tie" if parity.ties else ""
    click.echo(f"checked:  {parity.rows:,} decisions{ties}; largest difference {parity.worst:.2g}")

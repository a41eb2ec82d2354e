"""Commands that keep templates and generated files in order: apply, render."""

from pathlib import Path
from typing import Annotated

import typer

from verl_ingest import render as rendering
from verl_ingest.cli import reference
from verl_ingest.edge import folder
from verl_ingest.errors import KitError, StoreError
from verl_ingest.index import apply as templates
from verl_ingest.index import client


def apply_templates(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, write nothing.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace templates that someone else wrote or changed.")
    ] = False,
) -> None:
    """Prepare Elasticsearch for the logs; before any load.

    Writes the index templates, after showing what differs from those that are there; to be run again after each update
    of the kit. Your own settings belong into the component template verl@custom, which is never touched.
    """
    settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        rows = templates.compare(server, templates.wanted(settings), overwrite=overwrite)
        for row in rows:
            typer.echo(f"{row.name}: {row.state}" + (f" ({row.why})" if row.why else ""))
            if row.diff:
                typer.echo(row.diff)
        strange = [row.name for row in rows if row.state == "differs"]
        if strange:
            raise StoreError(
                f"Nothing was written, because the kit did not write what stands there as {' and '.join(strange)}; "
                "keep your own settings in the component template verl@custom, and let --overwrite replace the rest."
            )
        if dry_run:
            typer.echo("Dry run: nothing was written.")
        else:
            templates.write(server, rows)


def render_files(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write the agent's folder for these settings: start Fluent Bit there."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; show what is stale and exit with 1.")] = False,
) -> None:
    """Render the agent's folder; without --out rewrite the generated files of a checkout.

    The agent's folder holds fluent-bit.yaml and the Lua files, for `fluent-bit -c FOLDER/fluent-bit.yaml`. The
    generated files of a checkout are the default rendering of it, the server's templates and docs/reference/.
    """
    root, files = (out, folder.files(context.obj)) if out else (rendering.root(), rendering.files() | commands(context))
    if not check:
        written = rendering.write(root, files)
        for name in written:
            typer.echo(f"{root / name if out else name}: written")
        typer.echo(f"{len(files) - len(written)} of {len(files)} files were fresh already.")
        if out:
            typer.echo(f"To start the agent: fluent-bit -c {root / 'fluent-bit.yaml'}")
        return
    stale = rendering.diff(root, files)
    if stale:
        typer.echo(stale, nl=False)
        raise KitError("Generated files are stale; run `verl-ingest render` and commit what it writes.")


def commands(context: typer.Context) -> dict[str, str]:
    """Return the reference page of the whole command line that `context` is a part of."""
    return {reference.PATH: reference.page(context.find_root().command)}

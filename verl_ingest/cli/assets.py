"""Commands that keep templates and generated files in order: apply, render."""

from typing import Annotated

import typer

from verl_ingest import render as rendering
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
    check: Annotated[bool, typer.Option("--check", help="Write nothing; show what is stale and exit with 1.")] = False,
) -> None:
    """Rewrite the generated files of a checkout.

    These are deploy/elasticsearch/ and docs/reference/, made from the catalogues in verl_ingest/catalog/.
    """
    root, files = rendering.root(), rendering.files()
    if not check:
        for name in rendering.write(root, files):
            typer.echo(f"{name}: written")
        return
    stale = rendering.diff(root, files)
    if stale:
        typer.echo(stale, nl=False)
        raise KitError("Generated files are stale; run `verl-ingest render` and commit what it writes.")

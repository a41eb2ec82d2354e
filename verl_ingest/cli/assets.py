"""Commands that keep templates and generated files in order: apply, render."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from elasticsearch import AuthorizationException, Elasticsearch

from verl_ingest import differences
from verl_ingest import render as rendering
from verl_ingest.changes import Row
from verl_ingest.cli import reference
from verl_ingest.context.words import counted, listed
from verl_ingest.edge import folder
from verl_ingest.errors import KitError
from verl_ingest.index import apply as templates
from verl_ingest.index import client, existing, roles
from verl_ingest.index.mappings import Template
from verl_ingest.install import grafana, kibana
from verl_ingest.kibana import objects
from verl_ingest.settings import Settings


@dataclass(frozen=True)
class Plan:
    """How assets are brought, and shown: `brief` counts those that are as they should be, `diff` shows every line."""

    dry_run: bool
    overwrite: bool
    diff: bool = False
    brief: bool = False


def apply_assets(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, write nothing.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace what someone else wrote or changed under the kit's names.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show each change line by line too.")] = False,
) -> None:
    """Prepare Elasticsearch for the logs, Kibana and Grafana for looking at them; before any load.

    Writes the index templates and roles; where kibana_url is set, Kibana's data view and saved searches; where
    grafana_url and grafana.token are set, Grafana's data sources and dashboards. What changes is told first; what
    someone else changed is shown line by line, and left alone. To be run again after each update of the kit: indices
    that are there then get the new fields too. Your own index settings belong into the component template verl@custom,
    which is never touched.
    """
    bring(context.obj, Plan(dry_run=dry_run, overwrite=overwrite, diff=diff))
    if dry_run:
        typer.echo("Dry run: nothing was written.")


def bring(settings: Settings, plan: Plan) -> None:
    """Bring every server its assets, or only show how they stand; raises KitError with what could not be brought."""
    problems = []
    for bring_to in (_elasticsearch, _kibana, _grafana):
        try:
            bring_to(settings, plan)
        except KitError as error:  # a Kibana that is away keeps nobody from loading
            problems.append(str(error))
    if problems:
        raise KitError(" ".join(problems))


def _elasticsearch(settings: Settings, plan: Plan) -> None:
    wanted = templates.wanted(settings)
    with client.explained(settings), client.connect(settings) as server:
        rows = templates.compare(server, wanted, overwrite=plan.overwrite)
        gaps = _gaps(server, settings, wanted)
        if _may_write("Elasticsearch", [*rows, *gaps], "keep your own settings in verl@custom", plan):
            templates.write(server, rows)
            _fill(server, settings, gaps)
        if any(row.state == "updated" and row.news for row in rows):
            typer.echo("Indices that are there get new fields only; all else counts from the next day's index on.")
        if indices := templates.misshapen(server):
            typer.echo(client.misshapen(indices), err=True)
        _roles(server, plan)


def _roles(server: Elasticsearch, plan: Plan) -> None:
    """Bring the roles; many servers take none over their API, or not from this login, and need no more than a word."""
    try:
        rows = templates.compare(server, roles.wanted(), overwrite=plan.overwrite)
        may_write = _may_write("the roles of Elasticsearch", rows, "give yours another name", plan)
        if any(row.state == "created" for row in rows):
            typer.echo(roles.UNSEEN)
        if may_write:
            templates.write(server, rows)
    except roles.NotNeeded:
        return
    except roles.NotKept as error:
        typer.echo(str(error))


def _gaps(server: Elasticsearch, settings: Settings, wanted: Sequence[Template]) -> list[Row]:
    """Return what indices that are there lack; that someone may only write templates keeps nobody from doing so."""
    try:
        return existing.compare(server, wanted)
    except AuthorizationException as error:
        typer.echo(f"Not seen: whether existing indices lack fields. {client.explain(error, settings)}", err=True)
        return []


def _fill(server: Elasticsearch, settings: Settings, gaps: Sequence[Row]) -> None:
    """Give existing indices the fields they lack, and say where that was refused: nothing is lost, just not found."""
    refused = existing.write(server, gaps)
    if refused:
        names = differences.named(list(refused))
        why = client.explain(next(iter(refused.values())), settings)
        typer.echo(f"Not given the new fields, which can't be searched there: {names}. {why}", err=True)


def _kibana(settings: Settings, plan: Plan) -> None:
    if settings.kibana_url is None:
        return
    with kibana.connect(settings) as server:
        rows = kibana.compare(server, objects.objects(settings), overwrite=plan.overwrite)
        if _may_write("Kibana", rows, "save yours under another name", plan):
            kibana.write(server, rows)


def _grafana(settings: Settings, plan: Plan) -> None:
    if settings.grafana_url is None:
        return
    if settings.grafana.token is None:
        typer.echo("Grafana: left as it is, since VERL_INGEST_GRAFANA__TOKEN is not set.")
        return
    with grafana.connect(settings) as server:
        rows = grafana.compare(server, settings, overwrite=plan.overwrite)
        if _may_write("Grafana", rows, "save yours under another name", plan):
            grafana.write(server, rows)


def _may_write(server: str, rows: Sequence[Row], advice: str, plan: Plan) -> bool:
    """Show how assets stand; raises KitError where one is a stranger's, with the advice on what to do with it."""
    if plan.brief and (kept := sum(row.state == "kept" for row in rows)):
        typer.echo(f"{server}: {counted(kept, 'asset')} as the kit wants them")
    refused = [row for row in rows if row.state == "differs"]
    prefix = "to be " if plan.dry_run or refused else ""
    for row in rows:
        if plan.brief and row.state == "kept":
            continue
        about = row.why or row.versions
        state = f"{prefix}{row.state}" if row.is_to_be_written else row.state
        typer.echo(f"{row.name}: {state}" + (f" ({about})" if about else ""))
        for phrase in row.news:
            typer.echo(f"  {phrase}")
        if row.diff and (plan.diff or (row.why and not row.is_newer)):
            typer.echo(row.diff)
    if strange := [f"{row.name} was {row.why}" for row in refused if not row.is_newer]:
        raise KitError(
            f"Nothing was written to {server}, because {listed(strange)}; {advice}, and let --overwrite replace the "
            "rest."
        )
    if refused:
        raise KitError(
            f"Nothing was written to {server}, because what stands there was {refused[0].why}; "
            "use that version, or go back to this one with --overwrite."
        )
    return not plan.dry_run


def render_files(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write the agent's folder for these settings: start Fluent Bit there."
        ),
    ] = None,
    dashboards: Annotated[
        Path | None,
        typer.Option("--dashboards", metavar="FOLDER", help="Write what Kibana imports and Grafana reads from files."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; show what is stale and exit with 1.")] = False,
) -> None:
    """Render the agent's folder or the dashboards; without a FOLDER rewrite the generated files of a checkout.

    The agent's folder holds fluent-bit.yaml and the Lua files, for `fluent-bit -c FOLDER/fluent-bit.yaml`. The
    dashboards are for those who don't let `apply` install them: kibana/verl.ndjson, grafana/provisioning and
    grafana/dashboards. The generated files of a checkout are the default rendering of all that, the server's templates
    and docs/reference/.
    """
    if out and dashboards:
        raise KitError("--out and --dashboards write different things; give one of them.")
    if out:
        root, files = out, folder.files(context.obj)
    elif dashboards:
        own = rendering.dashboards(context.obj)
        root, files = dashboards, {name.removeprefix("deploy/"): text for name, text in own.items()}
    else:
        root, files = rendering.root(), rendering.files() | commands(context)
    if not check:
        written = rendering.write(root, files)
        for name in written:
            typer.echo(f"{root / name if out or dashboards else name}: written")
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

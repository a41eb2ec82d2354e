"""Commands for the agent: check."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from verl_ingest.demo import logs
from verl_ingest.edge import fluentbit, lint, trial
from verl_ingest.errors import InputError, KitError
from verl_ingest.load import files
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Paths, Settings

_SAMPLE_STEPS = 3


def check_agent(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="A fluent-bit.yaml to check; default: what these settings render.", readable=False
        ),
    ] = None,
) -> None:
    """Check Fluent Bit's configuration: names, values, what loses lines; and run it on sample logs.

    The run needs Fluent Bit, by FLUENT_BIT_BIN or on the PATH; without it only the configuration itself is read.
    """
    settings: Settings = context.obj
    if config is None:
        name, text = "the rendered fluent-bit.yaml", fluentbit.render(settings)
    else:
        name, text = str(config), _read(config)
    found = lint.problems(lint.parse(text, name))
    for problem in found:
        typer.echo(f"{name}: {problem}", err=True)
    if found:
        raise KitError(f"{len(found)} things are wrong with {name}, named above.")
    typer.echo(f"{name}: nothing unknown, nothing that loses lines.")
    binary = trial.find(os.environ)
    if binary is None:
        typer.echo("No run on sample logs: set FLUENT_BIT_BIN to Fluent Bit's path, or put fluent-bit on the PATH.")
    elif config is None:
        typer.echo(_try(binary, settings))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: the configuration can't be read: {error.strerror}.") from None


def _try(binary: str, settings: Settings) -> str:
    """Run the rendered configuration on sample logs; every line must become a document, without a complaint."""
    with tempfile.TemporaryDirectory() as folder:
        run, place = Path(folder, "runs", "sample"), Path(folder, "agent")
        place.mkdir()
        logs.write(run, steps=_SAMPLE_STEPS)
        below = f"{run.parent}/{{run}}"
        paths = Paths(rank=(f"{below}/*rank*.jsonl",), file_logger=(), console=(f"{below}/*.log",), rollout=())
        sample = settings.model_copy(update={"paths": paths, "drop": ()})
        done = trial.run(binary, sample, place)
        logs_found = files.discover([run], Normaliser(sample)).logs
        lines = sum(log.path.read_bytes().count(b"\n") for log in logs_found)
    if done.complaints:
        raise KitError(f"Fluent Bit complains about the rendered configuration: {done.complaints[0]}")
    if len(done.documents) != lines:
        raise KitError(f"Fluent Bit made {len(done.documents)} documents of {lines} sample lines.")
    return f"Fluent Bit made {lines} documents of {lines} sample lines."

"""The saved searches: what each shows, as a query in KQL and columns of Discover."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_ingest.query.bodies import ERROR_LEVELS, WARNING_LEVELS


@dataclass(frozen=True)
class Search:
    """One saved search; its id is part of addresses, so it never changes."""

    id: str
    title: str
    description: str
    query: str
    columns: tuple[str, ...]
    sort: tuple[tuple[str, str], ...] = (("@timestamp", "desc"),)


def _any_of(values: Iterable[str]) -> str:
    return f"({' or '.join(values)})"


SEARCHES = (
    Search(
        id="verl-step",
        title="verl: step context",
        description="Everything that belongs to a step, in the order it happened. Add: and run_id : NAME and step : N",
        query="step : *",
        columns=("run_id", "step_key", "stage", "rank", "metric_name", "value", "log.level", "message"),
        sort=(("@timestamp", "asc"),),
    ),
    Search(
        id="verl-warnings",
        title="verl: warnings and errors",
        description="Lines of level warning and above, and tracebacks.",
        query=f"log.level : {_any_of(WARNING_LEVELS + ERROR_LEVELS)} or error.type : *",
        columns=("step_key", "rank", "host.name", "log.level", "error.type", "message"),
    ),
    Search(
        id="verl-nonfinite",
        title="verl: non-finite metrics",
        description="Lines with a metric that was NaN or infinite; flags say which.",
        query="nonfinite : *",
        columns=("step_key", "stage", "rank", "host.name", "nonfinite", "flags"),
    ),
    Search(
        id="verl-lowest-reward",
        title="verl: lowest-reward samples",
        description="Prompts and responses, the lowest score first.",
        query="kind : sample and sample.score : *",
        columns=(
            "step_key",
            "sample.score",
            "sample.split",
            "sample.input",
            "sample.output",
            "sample.ground_truth",
            "sample.prompt_id",
        ),
        sort=(("sample.score", "asc"),),
    ),
    Search(
        id="verl-unparsed",
        title="verl: unparsed lines",
        description="Lines that were not understood, kept whole.",
        query="kind : unparsed",
        columns=("run_id", "log.file.path", "log.offset", "message", "flags"),
    ),
)

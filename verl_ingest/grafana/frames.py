"""Grafana's transformations: what its panels do with the tables that Elasticsearch answers."""

from collections.abc import Sequence
from typing import Any

from verl_ingest.grafana import queries
from verl_ingest.grafana.queries import Target

Transformation = dict[str, Any]

BEYOND = "beyond 3 sigma"
WINDOW = 50  # steps


def means(*names: str) -> tuple[Target, list[Transformation]]:
    """Return the query for the mean of metrics of the catalogue by step, and what makes it a column each.

    Where a run spells a metric in several ways, the best spelling counts, step by step.
    """
    target = queries.by_step(queries.averages([field for name in names for field in queries.fields_of(name)]))
    columns = [_first_spelling(target, name, name) for name in names]
    return target, [*columns, keep("step", *names, ref="A")]


def ranks_of(name: str) -> tuple[Target, list[Transformation]]:
    """Return the query for a metric of the catalogue by step and rank, and what makes it a column a rank."""
    rank = queries.terms("rank")
    target = queries.by_step(
        queries.averages(queries.fields_of(name)), rank, where=_of_ranks(queries.with_any(queries.fields_of(name)))
    )
    return target, [_first_spelling(target, name, name), *_rank_columns(name)]


def ranks_of_chosen(*, size: str = queries.ALL, worst: str = "") -> tuple[Target, list[Transformation]]:
    """Return the query for the chosen metric by step and rank, and what makes it a column a rank.

    With `worst`, asc or desc, only as many ranks as `size` says: those of the lowest or highest mean.
    """
    order = {"order": worst, "order_by": "1"} if worst else {}
    rank = queries.terms("rank", size=size, **order)
    where = _of_ranks(queries.WITH_CHOSEN)
    return queries.by_step(queries.averages([queries.CHOSEN]), rank, where=where), _rank_columns("Average")


def beyond_three_sigma(name: str) -> tuple[list[Target], list[Transformation]]:
    """Return the queries for a metric of the catalogue by step with its band of 3 sigma, and the steps beyond it.

    The band is that of the WINDOW steps up to each step. The second query is the first once more: of its rows only
    those beyond the band are kept.
    """
    fields = queries.fields_of(name)
    where = f"{queries.METRICS} AND {queries.with_any(fields)}"
    targets = [queries.by_step(queries.averages(fields), where=where, ref=ref) for ref in "AB"]
    return targets, [
        _first_spelling(targets[0], name, name),
        *_sigma(name, ref="A"),
        keep("step", name, "upper", "lower", ref="A"),
        # Another name from the start: 11.6 would number two that were once called alike.
        _first_spelling(targets[1], name, BEYOND),
        *_sigma(BEYOND, ref="B"),
        _rows_beyond("distance in 3 sigma", 1) | _only("B"),
        keep("step", BEYOND, ref="B"),
        joined(),
    ]


def slowest_ranks(names: Sequence[str]) -> tuple[list[Target], list[Transformation]]:
    """Return the queries for how many times the median of the ranks the slowest takes, by step, a column a metric.

    `names` are as printed.
    """
    targets: list[Target] = []
    transformations: list[Transformation] = []
    for ref, name in zip("ABCDEFGH", names, strict=False):
        field = f"metrics.{name}"
        where = f"{queries.METRICS} AND {queries.with_any([field])}"
        targets.append(queries.by_step(queries.percentiles(field, 50, 100), where=where, ref=ref))
        ratio = _calculated(name, _field(f"p100.0 {field}"), "/", _field(f"p50.0 {field}"))
        transformations += [ratio | _only(ref), keep("step", name, ref=ref)]
    return targets, [*transformations, joined()]


def matrix(columns: str, value: str) -> list[Transformation]:
    """Turn rows of (columns, step, value) into a row a step with a column for each value of `columns`, steps rising."""
    step = f"step\\{columns}"
    options = {"columnField": columns, "rowField": "step", "valueField": value, "emptyValue": "null"}
    return [
        {"id": "groupingToMatrix", "options": options},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": step}]}},
        renamed({step: "step"}),
    ]


def _rank_columns(value: str) -> list[Transformation]:
    """Make a column a rank. Heat maps take columns with bare numbers as names for the bounds of buckets over time."""
    return [*matrix("rank", value), renamed_like(r"^(\d+)$", "rank $1")]


def joined() -> Transformation:
    """Put tables by step beside each other."""
    return {"id": "joinByField", "options": {"byField": "step", "mode": "outer"}}


def keep(*names: str, ref: str) -> Transformation:
    """Drop all other columns of the answer `ref`."""
    return {"id": "filterFieldsByName", "options": {"include": {"names": list(names)}}} | _only(ref)


def renamed(names: dict[str, str], *, ref: str | None = None) -> Transformation:
    """Rename columns; with `ref` those of that answer."""
    return {"id": "organize", "options": {"renameByName": names}} | (_only(ref) if ref else {})


def renamed_like(pattern: str, name: str) -> Transformation:
    """Rename columns by a regular expression."""
    return {"id": "renameByRegex", "options": {"regex": pattern, "renamePattern": name}}


def _of_ranks(condition: str) -> str:
    return f"{queries.METRICS} AND {queries.OF_RANKS} AND {condition}"


def _first_spelling(target: Target, name: str, column: str) -> Transformation:
    """Make a column of a metric: in each row the first spelling that has a number."""
    averages, fields = target["metrics"], queries.fields_of(name)
    spellings = [queries.column(averages, average) for average in averages if average["field"] in fields]
    reduce = {"include": spellings, "reducer": "firstNotNull"}
    options = {"mode": "reduceRow", "reduce": reduce, "alias": column, "timeSeries": False}
    return {"id": "calculateField", "options": options} | _only(target["refId"])


def _sigma(name: str, *, ref: str) -> list[Transformation]:
    """Make the columns upper and lower, and how far each value is from the usual one, in 3 sigma."""
    columns = [
        _window("mean", name, "usual"),
        _window("stdDev", name, "sigma"),
        _calculated("3 sigma", _field("sigma"), "*", {"fixed": "3"}),
        _calculated("upper", _field("usual"), "+", _field("3 sigma")),
        _calculated("lower", _field("usual"), "-", _field("3 sigma")),
        _calculated("distance", _field(name), "-", _field("usual")),
        _calculated("distance in 3 sigma", _field("distance"), "/", _field("3 sigma")),
    ]
    return [column | _only(ref) for column in columns]


def _window(reducer: str, field: str, name: str) -> Transformation:
    window = {
        "field": field,
        "reducer": reducer,
        "windowAlignment": "trailing",
        "windowSizeMode": "fixed",
        "windowSize": WINDOW,
    }
    options = {"mode": "windowFunctions", "window": window, "alias": name, "timeSeries": False}
    return {"id": "calculateField", "options": options}


def _calculated(name: str, left: dict[str, Any], operator: str, right: dict[str, Any]) -> Transformation:
    binary = {"left": left, "operator": operator, "right": right}
    options = {"mode": "binary", "binary": binary, "alias": name, "timeSeries": False}
    return {"id": "calculateField", "options": options}


def _field(name: str) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": name}}


def _rows_beyond(field: str, size: float) -> Transformation:
    filters = [
        {"fieldName": field, "config": {"id": "greater", "options": {"value": size}}},
        {"fieldName": field, "config": {"id": "lower", "options": {"value": -size}}},
    ]
    return {"id": "filterByValue", "options": {"type": "include", "match": "any", "filters": filters}}


def _only(ref: str) -> dict[str, Any]:
    return {"filter": {"id": "byRefId", "options": ref}}

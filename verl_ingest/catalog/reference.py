"""Write the pages of docs/reference that the catalogues make: fields, metrics, troubles."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from verl_ingest import assets
from verl_ingest.catalog import fields, metrics, troubles
from verl_ingest.catalog.fields import Field
from verl_ingest.catalog.metrics import Metric
from verl_ingest.catalog.troubles import Trouble

CARRIERS = {
    None: "Every document",
    "records": "Records only (`verl-YYYY.MM.DD`)",
    "samples": "Samples only (`verl-samples-YYYY.MM.DD`)",
    "steps": "Step summaries only (`verl_steps`)",
}
BAD = {"up": "up", "down": "down", "either": "up or down"}


def pages() -> dict[str, str]:
    """Return the generated pages: path relative to the repository -> text."""
    return {
        "docs/reference/fields.md": fields_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/troubles.md": troubles_page(),
    }


def fields_page() -> str:
    """Return the page with every field of a document and every flag."""
    catalogue = fields.load()
    tables = {
        title: table(
            ("Field", "Type", "Meaning", "Filled from", "Example"),
            (_field_row(field) for field in catalogue.fields if field.index == index),
        )
        for index, title in CARRIERS.items()
    }
    flags = table(("Flag", "Meaning"), ((_code(flag), meaning) for flag, meaning in catalogue.flags.items()))
    rules = table(("Rule", "Drops"), ((_code(rule), meaning) for rule, meaning in catalogue.rules.items()))
    return assets.template("fields.md.j2").render(tables=tables, flags=flags, rules=rules)


def metrics_page() -> str:
    """Return the page with every metric: names, limits, causes and first action, by stage."""
    catalogue = metrics.load()
    golden = table(
        ("Metric", "Stage", "Healthy", "Alarm"),
        ((_code(m.name), m.stage, str(m.healthy or ""), _alarms(m)) for m in catalogue.golden),
    )
    stages = [
        _stage(stage, [metric for metric in catalogue.metrics if metric.stage == stage]) for stage in metrics.STAGES
    ]
    return assets.template("metrics.md.j2").render(golden=golden, stages=stages)


def troubles_page() -> str:
    """Return the page with every trouble, how it is said, and the first action."""
    rows = ((trouble.short, _said(trouble), trouble.first_action) for trouble in troubles.load().values())
    found = table(("Trouble", "Lines that say it", "First action"), rows)
    return assets.template("troubles.md.j2").render(troubles=found)


def _said(trouble: Trouble) -> str:
    said = ", ".join(_code(text) for text in (*(says.pattern for says in trouble.says), *trouble.warns))
    return f"{said} (a consequence)" if trouble.consequence else said


def _stage(stage: str, members: Sequence[Metric]) -> dict[str, Any]:
    judged = [metric for metric in members if metric.direction != "none"]
    others = [metric for metric in members if metric.direction == "none"]
    return {
        "title": stage.capitalize(),
        "judged": table(
            ("Metric", "Meaning", "Also spelt", "Unit", "Layer", "Bad", "Limits"), map(_judged_row, judged)
        ),
        "advice": table(
            ("Metric", "Usual causes, likeliest first", "First action"),
            ((_code(m.name), "<br>".join(m.causes), m.first_action) for m in judged),
        ),
        "others": table(
            ("Metric", "Meaning", "Also spelt", "Unit", "Layer"),
            ((_code(m.name), m.short, _spellings(m), m.unit, m.layer) for m in others),
        )
        if others
        else "",
    }


def _field_row(field: Field) -> tuple[str, ...]:
    if field.type == "alias":
        return _code(field.name), f"alias of {_code(field.path)}", field.short, "", ""
    kind = f"list of {field.type}" if field.is_list else field.type
    example = field.example if isinstance(field.example, str) else json.dumps(field.example)
    return _code(field.name), kind, field.short, field.source, _code(example.replace("\n", "\\n"))


def _judged_row(metric: Metric) -> tuple[str, ...]:
    bad = BAD[metric.direction] + (", NaN" if metric.finite_required else "")
    limits = [f"healthy {metric.healthy}"] if metric.healthy else []
    limits += [f"alarm {_alarms(metric)}"] if metric.alarms else []
    return (
        _code(metric.name),
        metric.short,
        _spellings(metric),
        metric.unit,
        metric.layer,
        bad,
        "; ".join(limits),
    )


def _spellings(metric: Metric) -> str:
    return ", ".join(_code(name) for name in (*metric.names[1:], *metric.patterns))


def _alarms(metric: Metric) -> str:
    return ", or ".join(map(str, metric.alarms))


def _code(text: str) -> str:
    return f"`{text}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    # A bar ends a cell even inside code, so it is escaped there too.
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from verl_ingest.catalog import fields, metrics, reference, troubles

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "path", ["docs/reference/fields.md", "docs/reference/metrics.md", "docs/reference/troubles.md"]
)
def test_the_committed_page_is_the_generated_one(path):
    assert (ROOT / path).read_text(encoding="utf-8") == reference.pages()[path]


def test_the_pages_name_what_they_are_made_from():
    sources = {path: text.splitlines()[0] for path, text in reference.pages().items()}
    assert "verl_ingest/catalog/fields.yml and templates/fields.md.j2" in sources["docs/reference/fields.md"]
    assert "verl_ingest/catalog/metrics.yml and templates/metrics.md.j2" in sources["docs/reference/metrics.md"]
    assert all("Generated from" in line for line in sources.values())


def test_every_field_and_flag_has_a_row_under_the_right_heading():
    before, records = reference.fields_page().split("## Records only")
    records, samples = records.split("## Samples only")
    samples, steps = samples.split("## Step summaries only")
    steps, flags = steps.split("## Flags")
    part = {None: before, "records": records, "samples": samples, "steps": steps}
    for field in fields.load().fields:
        assert f"\n| `{field.name}` |" in part[field.index]
    for flag, meaning in fields.load().flags.items():
        assert f"\n| `{flag}` | {meaning} |" in flags


def test_every_metric_has_a_row_in_its_stage_with_its_causes():
    parts = reference.metrics_page().split("\n## ")
    stages = {part.splitlines()[0].lower(): part for part in parts[2:]}
    assert tuple(stages) == metrics.STAGES
    for metric in metrics.load().metrics:
        part = stages[metric.stage]
        assert f"\n| `{metric.name}` | {metric.short} |" in part
        assert all(f"`{name}`" in part for name in (*metric.names, *metric.patterns))
        if metric.first_action:
            assert f"\n| `{metric.name}` | {'<br>'.join(metric.causes)} | {metric.first_action} |" in part


def test_every_trouble_has_a_row_with_its_first_action():
    page = reference.troubles_page()
    for trouble in troubles.load().values():
        assert f"\n| {trouble.short} | " in page and f" | {trouble.first_action} |" in page


def test_the_golden_six_come_first_with_their_limits():
    golden = reference.metrics_page().split("\n## ")[1]
    assert "| `kl_ref` | reward | 0.005 to 0.03 | above 0.05 and rising |" in golden
    assert "| `advantage_std` | actor |  | below 0.05, or below 2 x \\|advantage_mean\\| |" in golden


@pytest.mark.parametrize("page", [reference.fields_page, reference.metrics_page, reference.troubles_page])
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page):
    cells = 0
    for line in page().splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        count = line.replace("\\|", "").count("|")
        cells = cells or count
        assert count == cells, line


@pytest.mark.parametrize("page", [reference.fields_page, reference.metrics_page, reference.troubles_page])
def test_blank_lines_are_single_and_the_end_is_one_newline(page):
    assert "\n\n\n" not in page()
    assert page().endswith("|\n")


def test_a_template_with_an_unknown_value_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "fields.md.j2").write_text("{{ tables }}{{ colour }}")
    monkeypatch.setattr(reference.assets, "path", lambda name: tmp_path)
    with pytest.raises(jinja2.UndefinedError, match="colour"):
        reference.fields_page()


def test_a_changed_catalogue_changes_the_page(monkeypatch):
    known = fields.load()
    new = fields.Field("new", "keyword", "New one.", "a|b", "the line")
    changed = replace(known, fields=(new, *known.fields))
    monkeypatch.setattr(fields, "load", lambda: changed)
    assert "\n| `new` | keyword | New one. | the line | `a\\|b` |\n" in reference.fields_page()

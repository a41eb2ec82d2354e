"""The results as a table in docs/reliability.md, and as a sentence for the terminal."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from chaos.verdict import Verdict

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- Results, written by make chaos; do not edit. -->", "<!-- End of the results. -->"
_HEADER = (
    "What is done",
    "How often",
    "Lines",
    "Documents",
    "Missing",
    "Named by the audit",
    "Missing after `--repair`",
    "Stored twice",
    "Pieces of lines",
    "In no file any more",
    "Why",
)


def write(verdicts: Sequence[Verdict], versions: Mapping[str, str]) -> None:
    """Put the results of a whole run between the marks of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = f"{before}{BEGIN}\n{results(verdicts, versions)}\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")


def results(verdicts: Sequence[Verdict], versions: Mapping[str, str]) -> str:
    """Return the table, and below it with what it was made and when."""
    lines = [_HEADER, ["---"] * 2 + ["--:"] * (len(_HEADER) - 3) + ["---"], *map(_row, verdicts)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"\n{table}\n\n{made}, {datetime.now(timezone.utc):%Y-%m-%d}.\n"


def _row(verdict: Verdict) -> Sequence[str]:
    numbers = (
        verdict.lines,
        verdict.documents,
        verdict.missing,
        verdict.named,
        verdict.left,
        verdict.twice,
        verdict.no_lines,
        verdict.gone,
    )
    return verdict.scenario.what, verdict.done, *(f"{number:,}" for number in numbers), verdict.why


def sentence(verdict: Verdict) -> str:
    """Return what became of the lines, and what is wrong with that."""
    text = (
        f"{verdict.done}; {verdict.lines:,} lines, {verdict.documents:,} documents, {verdict.missing:,} missing, "
        f"{verdict.named:,} named, {verdict.left:,} after the repair, {verdict.twice:,} twice, "
        f"{verdict.no_lines:,} pieces, {verdict.gone:,} in no file"
    )
    return "; ".join((text, *(f"FAILED: {failure}" for failure in verdict.failures)))

"""The first screen as Markdown, to paste into a ticket or a chat."""

import re
from collections.abc import Sequence

from verl_ingest.serve.page.view import StepView

# What Markdown or a chat would take for markup inside a sentence; a name such as actor_loss reads on.
_MARKUP = re.compile(r"([\\`*\[\]<>|#])")
SHORTEST_FENCE = 3


def text(view: StepView) -> str:
    """Return the first screen: verdict, cause, first action, first error, golden six, ranks, stages, trust, link."""
    parts = [
        f"**{view.word}: {_plain(view.run_id)}, {', '.join(view.facts)}** ({view.when})",
        *(f"- {_plain(sentence)}" for sentence in (*view.sentences, *view.more)),
        _action(view),
        _error(view),
        _golden(view),
        _ranks(view),
        _stages(view),
        " · ".join(map(_plain, view.trust)),
        f"<{view.addresses.permalink}>",
    ]
    return "\n".join(_spaced([part for part in parts if part])) + "\n"


def _spaced(parts: Sequence[str]) -> list[str]:
    """Put an empty line between the parts, but not between the items of a list."""
    lines: list[str] = []
    for part in parts:
        if lines and not (part.startswith("- ") and lines[-1].startswith("- ")):
            lines.append("")
        lines.append(part)
    return lines


def _action(view: StepView) -> str:
    return f"First: {_plain(view.action.sentence)}" if view.action else ""


def _error(view: StepView) -> str:
    error = view.error
    if error is None:
        return ""
    about = ", ".join(filter(None, (error.who, error.where, error.time)))
    then = [f"Then {_plain(sentence)}." for sentence in error.then]
    return "\n".join([f"First error: {_plain(about)}", _fenced("\n".join((*error.frames, error.message))), *then])


def _golden(view: StepView) -> str:
    if not view.golden:
        return ""
    rows = [
        f"| {_plain(row.name)} | {row.value} | {row.usual} | {row.z} | {f'**{row.word}**' if row.word else ''} |"
        for row in view.golden
    ]
    return "\n".join(["| metric | value | usual | z | |", "|---|--:|--:|--:|---|", *rows])


def _ranks(view: StepView) -> str:
    if view.ranks is None:
        return ""
    worst = [
        f"- rank {rank.rank}{f' ({_plain(rank.place)})' if rank.place else ''}: {_plain(rank.reason)}"
        for rank in view.ranks.worst
    ]
    missing = [f"- missing: {view.ranks.missing}"] if view.ranks.missing else []
    return "\n".join([*worst, *missing])


def _stages(view: StepView) -> str:
    known = [
        f"{stage.name} {stage.duration}" + (f" ({stage.word}, {stage.usual})" if stage.word else "")
        for stage in view.stages
    ]
    return f"Stages: {_plain(', '.join(known))}" if known else ""


def _plain(words: str) -> str:
    """Write words so that nothing in them is markup, all in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(words.split()))


def _fenced(code: str) -> str:
    """Put code between fences longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(SHORTEST_FENCE, longest + 1)
    return f"{fence}\n{code}\n{fence}"

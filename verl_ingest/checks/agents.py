"""The agent of this machine: is it behind, does it lose anything, is its version a trap, has it room to wait?"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from verl_ingest.checks.check import Check, said
from verl_ingest.context.words import counted, duration
from verl_ingest.deadletters import letters
from verl_ingest.edge import fluentbit
from verl_ingest.errors import KitError
from verl_ingest.lag import metrics
from verl_ingest.lag.collect import collect
from verl_ingest.lag.facts import Facts
from verl_ingest.lag.offsets import state_folder
from verl_ingest.lag.verdict import Limits, problems
from verl_ingest.settings import Settings

NAME = "agent"
CAREFUL = (5, 1, 3)  # the first version that drops a refused document alone, and says so
UNDER_WAY = 16 * 2_000_000  # bytes: what an agent has in its hands, in 16 chunks
OUTPUTS = len(fluentbit.PREFIXES)
NUMBERS = "`verl-ingest lag` shows the numbers, docs/agent.md what they mean"


def check(settings: Settings) -> Iterator[Check]:
    """Yield a check on each matter of the agent; just one where this machine has none."""
    away, remedy = "", NUMBERS
    try:
        agent = metrics.read(settings)
        yield Check(NAME, "fine", f"It runs, for {duration(agent.uptime_s)}.")
        yield judge_version(agent.version, settings)
    except KitError as error:
        if not Path(settings.agent.state).is_dir():
            yield Check(NAME, "fine", f"None on this machine: there is no folder {settings.agent.state}.")
            return
        away = str(error)
        silent = said(NAME, "wrong", away)
        remedy = f"{silent.remedy}; or remove {settings.agent.state} if no agent is to come back"
        if settings.deploy.target:
            remedy = f"run `verl-ingest deploy`, or {remedy}"
        yield replace(silent, remedy=remedy)
    facts = collect(settings)
    yield from judge_lag(facts, remedy, known=away)
    try:
        state_folder(settings)
    except KitError:  # one of the troubles of `lag`
        return
    yield from _readable("rejected", partial(_rejected, settings))
    yield from _readable("buffer", partial(_buffer, settings, facts))


def judge_version(version: str, settings: Settings) -> Check:
    """Return the verdict on a version of Fluent Bit, `5.1.1`: what of it is a trap with these settings."""
    name, is_new = "Fluent Bit", tuple(map(int, re.findall(r"\d+", version)[:3])) >= CAREFUL
    match is_new, settings.agent.fluent_bit_513:
        case True, True:
            return Check(name, "fine", f"{version}.")
        case True, False:
            found = f"{version} can drop a refused document alone, and is not told to."
            return Check(name, "watch", found, "set agent.fluent_bit_513: true, and deploy again")
        case False, True:
            found = f"{version} does not start with what agent.fluent_bit_513 renders, which is for 5.1.3 and later."
            return Check(name, "wrong", found, "update Fluent Bit, or set agent.fluent_bit_513: false")
    found = f"{version} forgets a refused document without a word when others of its request are taken."
    return Check(name, "watch", found, "update Fluent Bit to 5.1.3 or later, then set agent.fluent_bit_513: true")


def judge_lag(facts: Facts, remedy: str = NUMBERS, *, known: str = "") -> Iterator[Check]:
    """Yield a check on each thing that is behind or lost, and on what is not known, but for the trouble `known`.

    `remedy` is for what has none of its own.
    """
    behind = problems(replace(facts, troubles=()), Limits())
    for problem in behind:
        yield said("lag", "wrong", problem, remedy)
    for trouble in facts.troubles:
        if trouble != known:
            yield said("lag", "unknown", trouble)
    if not behind and not facts.troubles:
        yield Check("lag", "fine", f"{counted(len(facts.files), 'file')} read, nothing waits for long.")


def judge_buffer(limit: int, waiting: int, free: int) -> Check:
    """Return the verdict on the bytes `free` for what may wait: `limit` for each output, of which `waiting` do."""
    room = max(limit * OUTPUTS - waiting, 0)
    found = f"{decimal(free)} are free where {decimal(room)} more may wait."
    remedy = "add space at agent.state, or lower agent.buffer_limit"
    if free < UNDER_WAY:
        return Check("buffer", "wrong", found, remedy)
    return Check("buffer", "watch", found, remedy) if free < room else Check("buffer", "fine", found)


def _readable(name: str, look: partial[Iterator[Check]]) -> Iterator[Check]:
    """Yield what is found in the agent's folder; where that may not be read, the check is unknown."""
    try:
        yield from look()
    except (KitError, OSError) as error:
        yield said(name, "unknown", str(error), "run this as the agent's user")


def _rejected(settings: Settings) -> Iterator[Check]:
    folder = fluentbit.rejected_folder(settings)
    found = letters.find([folder]) if folder.exists() else []
    if not found:
        yield Check("rejected", "fine", "The agent has given up nothing.")
        return
    size = decimal(sum(letter.size for letter in found))
    yield Check(
        "rejected",
        "wrong",
        f"The agent has given up sending {counted(len(found), 'chunk')}, {size}.",
        "`verl-ingest dead-letters` says whether the index has them, with --replay it sends them",
    )


def _buffer(settings: Settings, facts: Facts) -> Iterator[Check]:
    free = shutil.disk_usage(settings.agent.state).free
    yield judge_buffer(facts.buffer_limit, sum(each.bytes for each in facts.waiting), free)

"""What the facts mean: pure, so that other commands can judge the same facts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.filesize import decimal

from verl_ingest.context.words import counted, duration, listed
from verl_ingest.lag.facts import Facts


@dataclass(frozen=True)
class Limits:
    """What does not yet count as behind: bytes, unread or waiting, that are not older than so many seconds."""

    bytes: int = 10_000_000
    seconds: float = 60


def problems(facts: Facts, limits: Limits) -> list[str]:
    """Return a sentence on everything that is behind, lost or not known; none means that all is fine."""
    return [*facts.troubles, *_unread(facts, limits), *_waiting(facts, limits), *_lost(facts), *_stuck(facts)]


def _unread(facts: Facts, limits: Limits) -> Iterator[str]:
    behind = facts.unread
    total, idle = sum(file.unread for file in behind), max((file.idle_s for file in behind), default=0)
    if total <= limits.bytes and idle <= limits.seconds:
        return
    unknown = sum(file.offset is None for file in behind)
    more = f"; {unknown:,} of them the agent does not know yet: may it read them?" if unknown else "."
    yield (f"Behind by {decimal(total)} in {counted(len(behind), 'file')}, unread for {duration(idle)} or longer{more}")


def _waiting(facts: Facts, limits: Limits) -> Iterator[str]:
    agent, rest = facts.agent, ""
    if agent and agent.is_refused:
        start = f"since the agent's start {duration(agent.uptime_s)} ago"
        when = f"for {duration(agent.untaken_s)}" if agent.delivered else start
        rest = f", and nothing was delivered {when}; see its log"
    for output, group in groupby(sorted(facts.waiting, key=lambda each: each.output), key=lambda each: each.output):
        inputs = list(group)
        total, oldest = sum(each.bytes for each in inputs), max(each.oldest_s for each in inputs)
        if total <= limits.bytes and oldest <= limits.seconds and not rest:
            continue
        if agent is None:
            why = "Nobody sends"
        elif agent.retries or facts.newest is None:
            why = "Elasticsearch refuses or is away"
        else:
            why = "Elasticsearch is slow"
        size = f"{decimal(total)} of {decimal(facts.buffer_limit)}"
        yield f"{why}: {size} of {output} wait, the oldest for {duration(oldest)}{rest}."


def _lost(facts: Facts) -> Iterator[str]:
    agent = facts.agent
    if agent and agent.dropped:
        yield (
            f"The agent dropped {counted(agent.dropped, 'record')} since its start {duration(agent.uptime_s)} ago, as "
            "agent.buffer_limit was reached; `verl-ingest audit --repair` ships what the log files still have."
        )


def _stuck(facts: Facts) -> Iterator[str]:
    """An input that pauses goes on when one of its chunks is delivered; one without any would never go on."""
    held = {each.input for each in facts.waiting}
    behind = {file.family for file in facts.unread}
    if stuck := sorted(behind.intersection(facts.agent.paused if facts.agent else ()) - held):
        yield f"The agent does not go on reading {listed(stuck)}, though nothing of it waits; restart the agent."

"""Every address on the page of a step, made by links/."""

from collections.abc import Callable
from dataclasses import dataclass

from verl_ingest.links import page


@dataclass(frozen=True)
class Addresses:
    """Where the page leads; what is None is not shown. `step` takes a step's number, `sample` a sample's id."""

    runs: str
    run: str
    step: Callable[[int], str]
    sample: Callable[[str], str]
    previous_anomaly: str
    next_anomaly: str
    episode: str
    json: str
    permalink: str
    kibana: str | None = None
    grafana: str | None = None
    tracker: str | None = None
    back: str | None = None


def of_step(
    base: str,
    run_id: str,
    step: int,
    *,
    permalink: str | None = None,
    kibana: str | None = None,
    grafana: str | None = None,
    tracker: str | None = None,
    back: str | None = None,
) -> Addresses:
    """Return the addresses of one step's page; `base` is where the service answers, `back` where its way back leads."""

    def own(number: int, part: str = "") -> str:
        return page.step(base, run_id, number, part=part, back=back)

    return Addresses(
        runs=page.runs(base),
        run=page.run(base, run_id),
        step=own,
        sample=lambda event_id: page.step(f"{base}{page.API}", run_id, step, part=f"samples/{event_id}"),
        previous_anomaly=own(step, "previous-anomaly"),
        next_anomaly=own(step, "next-anomaly"),
        episode=own(step, "episode"),
        json=page.step(f"{base}{page.API}", run_id, step),
        permalink=permalink or page.step(base, run_id, step),
        kibana=kibana,
        grafana=grafana,
        tracker=tracker if tracker and tracker.startswith(("http://", "https://")) else None,
        back=back,
    )

"""Run the searches of bodies.py on Elasticsearch: one snapshot a run, only the days it has, never capped."""

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from elasticsearch import AuthorizationException, Elasticsearch

from verl_ingest.errors import NotFound
from verl_ingest.index.mappings import ALL_PATTERN, RECORDS_PATTERN, SAMPLES_PATTERN, SAMPLES_PREFIX, STEPS_PATTERN
from verl_ingest.query import answers, beside, bodies, history, moments, summaries
from verl_ingest.query.bodies import Body
from verl_ingest.query.searches import pages, several
from verl_ingest.query.store import (
    Condition,
    Document,
    History,
    Key,
    Launch,
    Levels,
    Lines,
    MadeOf,
    Moment,
    Process,
    RunRow,
    Scores,
    Segment,
    Share,
    Stream,
)
from verl_ingest.query.summaries import Summary
from verl_ingest.retention import pins

PACE_STEPS = 51
PAGE = 10_000  # what a search may return, unless an index is set otherwise
KEEP_ALIVE = "2m"


class ElasticStore:
    """The runs of one cluster (see `store.Store`)."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client

    def run_ids(self, prefix: str = "") -> list[str]:
        """Return the runs whose name starts with the prefix."""
        return [
            bucket["key"]["run_id"]
            for bucket in pages(lambda after: self._search(ALL_PATTERN, bodies.run_ids(prefix, after)))
        ]

    def newest_run(self) -> str | None:
        """Return the run of the newest record."""
        hits = self._search(ALL_PATTERN, bodies.newest_record())["hits"]["hits"]
        return hits[0]["_source"]["run_id"] if hits else None

    def runs(self) -> list[RunRow]:
        """Return every run."""
        return [
            answers.run_row(bucket) for bucket in pages(lambda after: self._search(ALL_PATTERN, bodies.runs(after)))
        ]

    @contextmanager
    def open(self, run_id: str) -> Iterator["ElasticRun"]:
        """Open a snapshot of one run; raises NotFound when it has no records."""
        found = self._search(ALL_PATTERN, bodies.days(run_id)).get("aggregations")  # none where no index matches
        indices = [bucket["key"] for bucket in found["days"]["buckets"]] if found else []
        if not indices:
            raise NotFound(f"There is no run '{run_id}'; `verl-ingest runs` lists them.")
        pit = self._client.open_point_in_time(index=",".join(indices), keep_alive=KEEP_ALIVE)["id"]
        run = ElasticRun(
            self._client, run_id, pit, has_samples=any(name.startswith(SAMPLES_PREFIX) for name in indices)
        )
        try:
            yield run
        finally:
            self._client.close_point_in_time(id=run.pit)

    def values(self, moments: Sequence[Moment], names: Sequence[str]) -> list[dict[str, float]]:
        """Return the weighted mean of each metric at each moment."""
        if not moments:
            return []
        asked = [bodies.values(moment.run_id, moment.step, moment.since, names) for moment in moments]
        means = [found["aggregations"] for found in several(self._client, {"index": RECORDS_PATTERN}, asked)]
        return [
            {
                name: answer[f"w{number}"]["value"]
                for number, name in enumerate(names)
                if answer[f"w{number}"]["value"] is not None
            }
            for answer in means
        ]

    def paces(self, newest: Mapping[str, int]) -> dict[str, list[float]]:
        """Return how many seconds each of the steps up to the newest one took, for each run."""
        if not newest:
            return {}
        asked = [bodies.step_ends(run_id, step, PACE_STEPS) for run_id, step in newest.items()]
        found = several(self._client, {"index": RECORDS_PATTERN}, asked)
        return {run_id: answers.pace(answer["aggregations"]) for run_id, answer in zip(newest, found, strict=True)}

    def golden(
        self, newest: Mapping[str, int], names: Sequence[str], *, window: int, look: int
    ) -> dict[str, Mapping[str, Levels]]:
        """Return the levels of metrics as step summaries have them."""
        if not newest:
            return {}
        asked = [summaries.levels(run_id, step, names, window=window, look=look) for run_id, step in newest.items()]
        found = several(self._client, {"index": STEPS_PATTERN}, asked)
        return {run: summaries.read_levels(answer["hits"]["hits"]) for run, answer in zip(newest, found, strict=True)}

    def pinned(self) -> frozenset[str] | None:
        """Return the runs that are pinned, None where the login may not see that."""
        try:
            return frozenset(pin.run_id for pin in pins.read(self._client))
        except AuthorizationException:
            return None

    def setups(self, run_ids: Sequence[str]) -> dict[str, list[Document]]:
        """Return the lines that say how each run was set up, in order of time."""
        found: dict[str, list[Document]] = {run_id: [] for run_id in run_ids}
        for hit in self._search(RECORDS_PATTERN, bodies.setups(run_ids) | {"size": PAGE})["hits"]["hits"]:
            found[hit["_source"]["run_id"]].append(hit["_source"])
        return found

    def share(self, condition: Condition, *, since: int, until: int, run_id: str | None) -> Share:
        """Count the values in the window, and those that fulfil the condition."""
        index = RECORDS_PATTERN if condition.names else SAMPLES_PATTERN
        found = self._search(index, bodies.share(condition, since=since, until=until, run_id=run_id))
        return answers.share(found.get("aggregations"))

    def _search(self, index: str, body: Body) -> Mapping[str, Any]:
        return self._client.search(index=index, body=body, allow_partial_search_results=False)


class ElasticRun:
    """One run in a point in time (see `store.RunReader`)."""

    def __init__(self, client: Elasticsearch, run_id: str, pit: str, *, has_samples: bool) -> None:
        self._client = client
        self.run_id = run_id
        self.pit = pit
        self._has_samples = has_samples

    def row(self) -> RunRow:
        """Return the run as the list of runs has it."""
        [bucket] = self._search(bodies.runs(None, self.run_id))["aggregations"]["page"]["buckets"]
        return answers.run_row(bucket)

    def pace(self, step: int) -> list[float]:
        """Return how many seconds each of the 50 steps up to `step` took."""
        return answers.pace(self._search(bodies.step_ends(self.run_id, step, PACE_STEPS))["aggregations"])

    def steps(self, *, low: int | None = None, high: int | None = None, size: int, newest_first: bool) -> list[int]:
        """Return at most `size` steps from one end of low..high."""
        body = bodies.steps(self.run_id, low=low, high=high, size=size, newest_first=newest_first)
        return [bucket["key"] for bucket in self._search(body)["aggregations"]["steps"]["buckets"]]

    def records(self, step: int) -> list[Document]:
        """Return all documents of a step but its samples, in order of time, then of file and offset."""
        return self._documents(bodies.records(self.run_id, step))

    def samples(self, segment: Segment, size: int, *, order: str = "lowest") -> list[Document]:
        """Return samples in an order: one of `SAMPLE_ORDERS`, or of the `first` or `last` steps."""
        if not self._has_samples:
            return []
        hits = self._search(beside.samples(self.run_id, segment, size, order=order))["hits"]["hits"]
        return [_document(hit) for hit in hits]

    def prompt(self, prompt_id: str) -> list[Document]:
        """Return the samples of one prompt, in order of step, then of time."""
        if not self._has_samples:
            return []
        return sorted(self._documents(beside.prompt(self.run_id, prompt_id)), key=lambda found: found["step"])

    def sample(self, event_id: str) -> Document | None:
        """Return one sample, None where the run has none of that id."""
        hits = self._search(beside.sample(self.run_id, event_id))["hits"]["hits"]
        return _document(hits[0]) if hits else None

    def scores(self, parts: Mapping[str, Sequence[Segment]]) -> dict[str, Scores]:
        """Return the scores of the samples of each part, in the same bins; {} where no part has samples."""
        if not self._has_samples:
            return {}
        extents = self._search(beside.score_extent(self.run_id, parts))["aggregations"]
        if not any(part["score"]["count"] for part in extents.values()):
            return {}
        low, width = beside.bin_width(extents)
        counts = self._search(beside.score_counts(self.run_id, parts, low, width))["aggregations"]
        return {name: beside.scores(extents[name], counts[name], low, width) for name in parts}

    def launches(self, stream: Stream) -> list[Launch]:
        """Return the processes that logged a stream, in order of their first record."""
        buckets = pages(lambda after: self._search(bodies.launches(self.run_id, stream, after)))
        return sorted(map(answers.launch, buckets), key=lambda launch: launch.first)

    def processes(self, *, pids: Collection[int] | None = None, rank: int | None = None) -> list[Process]:
        """Return the processes that records with a rank name, those with one of the ids or of one rank."""
        buckets = pages(lambda after: self._search(bodies.processes(self.run_id, pids=pids, rank=rank, after=after)))
        return [
            Process(**bucket["key"], first=int(bucket["first"]["value"]), last=int(bucket["last"]["value"]))
            for bucket in buckets
        ]

    def falls(self, stream: Stream, launch: Launch) -> bool:
        """Tell whether the step of a process that logged a stream falls, if not within a ten-thousandth of its time."""
        reached = 0.0
        for time in self._search(bodies.climb(self.run_id, stream, launch))["aggregations"]["times"]["buckets"]:
            if time["low"]["value"] < reached:
                return True
            reached = time["high"]["value"]
        return False

    def track(self, stream: Stream, launch: Launch | None = None) -> list[tuple[int, int]]:
        """Return (time, step) of every record of a stream, or of one process of it, in order of time."""
        hits = self._hits(bodies.track(self.run_id, stream, launch))
        return [(hit["sort"][0] // 1_000_000, hit["fields"]["step"][0]) for hit in hits]

    def first_after(self, since: int, until: int, step: int, *, dated: bool) -> int | None:
        """Return the time of the first metric record in since..until whose step is at most `step`."""
        body = bodies.first_after(self.run_id, since, until, step, dated=dated)
        found = self._search(body)["aggregations"]["first"]["value"]
        return None if found is None else int(found)

    def history(self, segments: Sequence[Segment], recent: Sequence[Segment], keys: Sequence[Key]) -> History:
        """Return the metrics' levels in the segments, and what each stage logged in the recent ones."""
        if not (keys if segments else recent):
            return History(levels={}, presence={})
        wanted = [*segments, *recent]
        stored = self.summaries(wanted)
        if not stored:
            return self._history_of_records(segments, recent, keys)
        made_of = self.made_of(wanted)
        fresh = {
            found.step: found
            for found, segment in product(stored, wanted)
            if summaries.is_fresh(found, segment, made_of)
        }
        rest, recent_rest = (summaries.others(part, made_of, fresh) for part in (segments, recent))
        return summaries.history(fresh, segments, recent, self._history_of_records(rest, recent_rest, keys))

    def summaries(self, segments: Sequence[Segment]) -> list[Summary]:
        """Return the summaries that there are of the segments' steps, of all attempts, fresh or not."""
        # By its pattern, so that an index that is not there, or not allowed, is the same as one without summaries.
        found = self._client.search(
            index=STEPS_PATTERN, body=summaries.stored(self.run_id, segments), allow_partial_search_results=False
        )
        return [summary for hit in found["hits"]["hits"] if (summary := summaries.read(hit["_source"])) is not None]

    def made_of(self, segments: Sequence[Segment]) -> dict[int, MadeOf]:
        """Return what records each step of the segments has, in order of step."""
        return history.read_made_of(self._search(history.made_of(self.run_id, segments))["aggregations"])

    def metric_records(self, segments: Sequence[Segment]) -> Iterator[Document]:
        """Yield the metric records of the segments without their ids, each as often as it stands in the store."""
        return (hit["_source"] for hit in self._hits(history.metric_records(self.run_id, segments)))

    def keys(self, names: Sequence[str]) -> dict[Key, int]:
        """Return how many records have each of the metrics, under all keys it has."""
        names = [name for name in names if "*" not in name]  # it would stand for any name
        if not names:
            return {}
        return beside.read_keys(self._search(beside.keys(self.run_id, names))["aggregations"], names)

    def rank_values(self, segments: Sequence[Segment], keys: Sequence[Key]) -> dict[Key, dict[int, dict[int, float]]]:
        """Return metric -> step -> rank -> value."""
        if not segments or not keys:
            return {}
        groups = self._search(history.rank_values(self.run_id, segments, keys))["aggregations"].values()
        steps = [bucket for group in groups for bucket in group["steps"]["buckets"]]
        found: dict[Key, dict[int, dict[int, float]]] = {}
        for number, key in enumerate(keys):
            name = f"v{number}"
            found[key] = {
                step["key"]: {
                    bucket["key"]: bucket[name]["value"]
                    for bucket in step["ranks"]["buckets"]
                    if bucket[name]["value"] is not None
                }
                for step in steps
                if step["ranks"]["buckets"] and name in step["ranks"]["buckets"][0]
            }
        return found

    def troubled_steps(self, segments: Sequence[Segment]) -> list[int]:
        """Return the steps with a value that is not finite, an error, or a warning of known trouble, in order."""
        body = history.troubled_steps(self.run_id, segments)
        return [bucket["key"] for bucket in self._search(body)["aggregations"]["steps"]["buckets"]]

    def nonfinite_steps(self, segments: Sequence[Segment]) -> dict[str, list[int]]:
        """Return the steps in which a metric was not finite on some rank, for each such metric."""
        buckets = self._search(beside.nonfinite_steps(self.run_id, segments))["aggregations"]["metrics"]["buckets"]
        return {metric["key"]: [step["key"] for step in metric["steps"]["buckets"]] for metric in buckets}

    def lines(self, wanted: Lines) -> list[Document]:
        """Return the log, event and unparsed lines and tracebacks that are wanted, in order of time."""
        return self._documents(bodies.lines(self.run_id, wanted))

    def setup(self) -> list[Document]:
        """Return the lines that say how the run was set up, in order of time."""
        return self._documents(bodies.setups([self.run_id]))

    def last_time(self, condition: Condition | None = None) -> int | None:
        """Return the time of the last record (with a value of the condition), one with a time of its own if any."""
        wanted = [bodies.of_run(self.run_id), *([bodies.has_value(condition)] if condition is not None else [])]
        for dated in ([bodies.IS_DATED], []):
            hits = self._search(bodies.newest_record([*wanted, *dated]))["hits"]["hits"]
            if hits:
                return hits[0]["sort"][0] // 1_000_000
        return None

    def span(self, step: int) -> tuple[int, int] | None:
        """Return the times of the first and last document of a step."""
        found = self._search(moments.span(self.run_id, step))["aggregations"]
        for ends in (found["dated"], found):
            if ends["first"]["value"] is not None:
                return int(ends["first"]["value"]), int(ends["last"]["value"])
        return None

    def step_at(self, time: int, labels: Mapping[str, Any]) -> int | None:
        """Return the step of the last record up to `time`, else of the first after it."""
        for dated, before in product((True, False), (True, False)):
            body = moments.step_at(self.run_id, time, labels, before=before, dated=dated)
            hits = self._search(body)["hits"]["hits"]
            if hits:
                return hits[0]["_source"]["step"]
        return None

    def step_in(self, since: int, until: int, labels: Mapping[str, Any]) -> int | None:
        """Return the step with the most records from `since` on and before `until`."""
        for dated in (True, False):
            body = moments.step_in(self.run_id, since, until, labels, dated=dated)
            buckets = self._search(body)["aggregations"]["steps"]["buckets"]
            if buckets:
                return buckets[0]["key"]
        return None

    def _history_of_records(
        self, segments: Sequence[Segment], recent: Sequence[Segment], keys: Sequence[Key]
    ) -> History:
        of_levels = [history.levels(self.run_id, segments, keys)] if segments else []
        of_presence = [history.presence(self.run_id, recent)] if recent else []
        asked = [{**body, "pit": self._pit()} for body in (*of_levels, *of_presence)]
        found = [answer["aggregations"] for answer in several(self._client, {}, asked)] if asked else []
        return History(
            levels=history.read_levels(found[0], keys) if of_levels else {key: {} for key in keys},
            presence=history.read_presence(found[-1]) if of_presence else {},
        )

    def _pit(self) -> Body:
        return {"id": self.pit, "keep_alive": KEEP_ALIVE}

    def _search(self, body: Body) -> Mapping[str, Any]:
        found = self._client.search(body={**body, "pit": self._pit()}, allow_partial_search_results=False)
        self.pit = found["pit_id"]
        return found

    def _documents(self, body: Body) -> list[Document]:
        """Return the documents of all hits in order; one that stands in two days' indices comes once."""
        found = {hit["_id"]: _document(hit) for hit in self._hits(body)}
        return sorted(found.values(), key=_order)

    def _hits(self, body: Body) -> Iterator[Mapping[str, Any]]:
        """Yield all hits of a search, page by page."""
        page: list[Mapping[str, Any]] = []
        while True:
            after = {"search_after": page[-1]["sort"]} if page else {}
            page = self._search({**body, "size": PAGE, "track_total_hits": False, **after})["hits"]["hits"]
            yield from page
            if len(page) < PAGE:
                return


def _document(hit: Mapping[str, Any]) -> Document:
    """Return the document of a hit with its id, which the loader does not write a second time."""
    return {**hit["_source"], "event_id": hit["_id"]}


def _order(document: Document) -> tuple[str, bytes]:
    """Order by time, then by file and place in the file; the text of an id does not sort as its bytes do."""
    return document["@timestamp"], base64.urlsafe_b64decode(document["event_id"])

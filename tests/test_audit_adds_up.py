"""Whatever a store says, every line of an audit is accounted for: a stand-in store, in memory."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.audits import SETTINGS, assert_adds_up, line, offset_of
from verl_ingest.audit import entries, pipeline
from verl_ingest.load import duration, files
from verl_ingest.load.reader import Lines, read
from verl_ingest.load.shipper import Shipped
from verl_ingest.normalise.lua import Block, Normaliser
from verl_ingest.settings import DropRule


class Memory:
    """A store and a shipper that keep ids in memory: index -> ids."""

    def __init__(self) -> None:
        self.ids: dict[str, set[str]] = {}

    def refresh(self) -> None:
        pass

    def counts(self, run_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        counts = {index: len(stand.intersection(ids)) for index, stand in self.ids.items()}
        return dict(sorted(((i, n) for i, n in counts.items() if n), key=lambda count: -count[1])[:2])

    def places(self, run_id: str, ids: Sequence[str]) -> Mapping[str, list[str]]:
        found = {event_id: sorted(i for i, stand in self.ids.items() if event_id in stand) for event_id in ids}
        return {event_id: indices for event_id, indices in found.items() if indices}

    def remove(self, documents: Sequence[tuple[str, str]]) -> None:
        for index, event_id in documents:
            self.ids[index].remove(event_id)

    def send(self, block: Block) -> None:
        for entry in entries.of_block(block):
            self.ids.setdefault(entry.index, set()).add(entry.event_id)

    def close(self) -> Shipped:
        return Shipped()

    def cancel(self) -> None:
        pass


LINES = st.one_of(
    # With a NUL a file counts as binary, with these two bytes first as gzip's.
    st.binary(max_size=60).map(lambda text: text.translate(None, b"\n\0").removeprefix(b"\x1f\x8b")),
    st.integers(0, 3).map(lambda step: line(step)[:-1]),
    st.sampled_from([b"", b" ", b'{"step":1,"data":{"loss":null}}', b'{"message":"noise","level":"debug"}', b"x" * 90]),
)
CONTENT = st.builds(lambda lines, end: b"".join(text + b"\n" for text in lines) + end, st.lists(LINES), LINES)
FATES = st.sampled_from(["there", "there", "there", "missing", "copied", "elsewhere"])
ELSEWHERE = "verl-9"


@given(
    contents=st.dictionaries(
        st.sampled_from(["rank0.jsonl", "rank0.jsonl.1", "rank0.jsonl.2", "metrics.jsonl", "console.log"]),
        CONTENT,
        min_size=1,
    ),
    fates=st.lists(FATES, min_size=1, max_size=40),
    full=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_balance_always_adds_up(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], fates: list[str], full: bool
) -> None:
    """Whatever the files hold and whatever became of their documents, every line is accounted for, rightly."""
    folder = tmp_path_factory.mktemp("audit")
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    own = SETTINGS.model_copy(update={"drop": (DropRule(name="noise", level="debug"),)})
    normaliser, memory = Normaliser(own), Memory()
    found = files.discover(map(folder.joinpath, contents), normaliser, run="r").logs
    belong: dict[str, str] = {}
    for log in found:
        handle = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
        for part in read(log, final=False):
            if isinstance(part, Lines):
                block = normaliser.block(handle, part.data, offset=part.offset, fallback=duration.began(log))
                belong |= {entry.event_id: entry.index for entry in entries.of_block(block)}
    fate_of = {event_id: fates[number % len(fates)] for number, event_id in enumerate(belong)}
    for event_id, fate in fate_of.items():
        if fate in ("there", "copied"):
            memory.ids.setdefault(belong[event_id], set()).add(event_id)
        if fate in ("elsewhere", "copied"):
            memory.ids.setdefault(ELSEWHERE, set()).add(event_id)
    report = pipeline.audit(found, memory, own, full=full)
    assert_adds_up(report)
    numbers = report.numbers()
    assert numbers["lines"] == sum(text.count(b"\n") + (text[-1:] not in (b"\n", b"")) for text in contents.values())
    lost = {event_id for event_id, fate in fate_of.items() if fate == "missing"}
    assert numbers["missing"] == len(lost)
    assert sorted(o for f in report.files for o in f.missing_offsets) == sorted(map(offset_of, lost))
    assert numbers["indexed"] == len(belong) - len(lost)
    assert numbers["in_two_days"] == sum(fate == "copied" for fate in fate_of.values())
    mended = pipeline.audit(found, memory, own, full=full, shipper=memory)  # type: ignore[arg-type]
    assert_adds_up(mended)
    assert (mended.missing, mended.numbers()["in_two_days"]) == (0, 0)
    assert sum(map(len, memory.ids.values())) == len(belong)


def test_a_failure_of_the_store_ends_the_audit(tmp_path: Path) -> None:
    class Failing(Memory):
        def counts(self, run_id: str, ids: Sequence[str]) -> Mapping[str, int]:
            raise RuntimeError("no")

    for rank in range(4):
        (tmp_path / f"rank{rank}.jsonl").write_bytes(line(1) * 100)
    bars: list[str] = []

    def progress(what: str, logs: Sequence[files.LogFile]) -> AbstractContextManager[Callable[[int], object]]:
        bars.append(f"{what} {len(logs)}")
        return nullcontext(lambda read: None)

    found = files.discover([tmp_path], Normaliser(SETTINGS))
    with pytest.raises(RuntimeError, match="no"):
        pipeline.audit(found.logs, Failing(), SETTINGS, progress=progress)
    assert bars == ["auditing 4"]

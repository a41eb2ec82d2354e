import pytest

from verl_ingest.catalog import CatalogueError, troubles

GOOD = {"name": "failed", "short": "error", "first_action": "Look."}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.", "gpu_out_of_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu_out_of_memory"),
        ("CUDA OOM during critic forward! Attempting recovery...", "gpu_out_of_memory"),
        (
            "ray.exceptions.OutOfMemoryError: 7 worker(s) were killed due to the node running low on memory. Memory on",
            "host_out_of_memory",
        ),
        ("RuntimeError: NCCL error: unhandled system error, rank 3 did not answer", "communication"),
        ("SIGTERM: *** SIGTERM received at time=1772380809 on cpu 0 ***", "terminated"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("RuntimeError: CUDA error: device-side assert triggered", "gpu_fault"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "worker_died"),
        ("ValueError: too many values to unpack", None),
    ],
)
def test_errors_are_told_apart(text, name):
    found = troubles.said_in(text)
    assert (found.name if found else None) == name


def test_every_error_is_critical_but_a_tool_that_timed_out():
    mild = {trouble.name for trouble in troubles.load().values() if trouble.says and not trouble.critical}
    assert mild == {"tool_timeout"}
    assert troubles.load()[troubles.ANY_ERROR].critical


def test_warnings_are_known_in_any_case():
    assert troubles.warned_of("Zero gradients detected in actor update!").name == "zero_gradients"
    assert troubles.warned_of("UserWarning: use_reentrant should be passed") is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "x", "short": "y"}], "troubles.yml: x has no first_action; add it."),
        ([GOOD | {"say": "x"}], "troubles.yml: failed has the unknown key say;"),
        ([GOOD, GOOD], "troubles.yml: failed is there twice; leave one."),
        ([GOOD | {"says": ["("]}], r"troubles.yml: '\(' is not a regular expression"),
        ([GOOD | {"name": "x"}], "troubles.yml: there is no failed"),
    ],
)
def test_a_wrong_entry_is_refused(entries, message):
    with pytest.raises(CatalogueError, match=message):
        troubles.check(entries)

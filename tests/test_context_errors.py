import pytest

from verl_ingest.context import errors

T = "2026-03-01T16:00:{:02}.000000000Z"


def error(second: int, message: str, *, ranks=(), pids=(), stack=None, count=1, host=None):
    """An error as lines.errors folds it."""
    return {
        "time": T.format(second), "last": T.format(second), "level": "error", "ranks": list(ranks), "pids": list(pids),
        "host": host, "source": None, "message": message, "count": count, "type": None, "fingerprint": None,
        "stack_trace": stack,
    }  # fmt: skip


OOM, NCCL = "torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: NCCL error"


def test_a_consequence_that_was_logged_first_yields_to_its_cause():
    found = errors.blamed([error(1, NCCL, ranks=[5]), error(2, OOM, ranks=[3])], {3: "node-1"})
    assert [(entry["kind"], entry["host"]) for entry in found] == [
        ("gpu_out_of_memory", "node-1"),
        ("communication", None),
    ]
    assert (
        errors.sentence(found)
        == "First error on rank 3: torch.OutOfMemoryError: CUDA out of memory; then rank 5: NCCL error."
    )


def test_a_consequence_long_before_another_error_is_the_first_one():
    late = error(0, OOM, ranks=[3]) | {"time": "2026-03-01T16:02:00.000000000Z"}
    assert [entry["kind"] for entry in errors.blamed([error(1, NCCL), late], {})] == [
        "communication",
        "gpu_out_of_memory",
    ]


@pytest.mark.parametrize(
    ("other", "blamed"),
    [
        (error(1, OOM, ranks=[3], pids=[77], stack="Traceback"), "gpu_out_of_memory"),
        (error(1, OOM, pids=[77], stack="Traceback"), "gpu_out_of_memory"),
        (error(1, OOM, ranks=[4], pids=[78], stack="Traceback"), "failed"),  # another process's
        (error(1, "killed by SIGTERM", ranks=[3], pids=[77]), "failed"),  # not what was raised
        (error(1, "ValueError: x", ranks=[3], pids=[77], stack="Traceback"), "failed"),  # of no known kind either
    ],
)
def test_a_line_that_says_nothing_yields_to_its_own_traceback(other, blamed):
    first = error(1, "update_actor failed, will be retried", ranks=[3], pids=[77])
    found = errors.blamed([first, other], {})
    assert (found[0]["kind"], len(found)) == (blamed, 2)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], []),
        ([error(2, OOM, ranks=[3])], []),  # the traceback of the error that was logged
        ([error(2, NCCL, ranks=range(4, 11))], ["7 ranks: NCCL error"]),
        ([error(2, NCCL, ranks=[4]), error(3, NCCL + " again", ranks=[6])], ["ranks 4, 6: NCCL error"]),
        ([error(2, OOM, pids=[77])], ["pid 77: GPU out of memory"]),
        ([error(2, "ValueError: x", ranks=[3])], ["rank 3: ValueError: x"]),
        ([error(2, f"E{n}", count=2) for n in range(5)], ["E0", "E1", "E2", "4 more errors"]),
    ],
)
def test_what_followed_is_folded_by_kind(others, said):
    assert errors.consequences([error(1, OOM, ranks=[3]), *others]) == said


def test_the_gpu_and_the_innermost_frames_are_told():
    stack = "Traceback\n" + "".join(f'  File "w.py", line {n}, in f{n}\n    call_{n}()\n' for n in range(5)) + "E: GPU"
    [found] = errors.blamed([error(1, f"{OOM} GPU 3 has a total capacity of 79.25 GiB", stack=stack)], {})
    assert found["gpu"] == 3
    assert found["frames"] == [f'File "w.py", line {n}, in f{n}\n    call_{n}()' for n in (2, 3, 4)]

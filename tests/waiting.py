"""Wait for something to become true, within bounds."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(predicate: Callable[[], T], *, timeout: float, what: str) -> T:
    """Return the first true value of `predicate`; fail with `what` and the last value after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {timeout:g} s; the last answer was {value!r}")
        time.sleep(0.05)
    return value

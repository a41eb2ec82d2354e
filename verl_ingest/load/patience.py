"""How long senders wait for a server that is busy or away, and what is said meanwhile."""

import threading
import time
from collections.abc import Callable

from elastic_transport import ConnectionError as Unreachable
from elastic_transport import ConnectionTimeout
from elasticsearch import ApiError

from verl_ingest.index import client

PATIENCE_S = 120  # without any success, before a load gives up
QUIET_S = 2  # a pause that short is not worth a word

Notice = Callable[[str], object]


class Patience:
    """Shared by all senders of one load; an outage lasts until any of them succeeds."""

    def __init__(self, notice: Notice) -> None:
        """Take what is told one sentence when an outage is noticed, and one when it is over."""
        self._notice = notice
        self._lock = threading.Lock()
        self._since: float | None = None
        self._said = False

    def fail(self, error: Exception, *, since: float) -> None:
        """Note a request that failed and was begun at `since` (monotonic); raise its error when patience is over."""
        with self._lock:
            self._since = since if self._since is None else min(self._since, since)
            away = time.monotonic() - self._since
            if away > PATIENCE_S:
                raise error
            if away > QUIET_S and not self._said:
                self._said = True
                self._notice(f"Elasticsearch {_what(error)}; waiting, {PATIENCE_S - away:.0f} s left.")

    def succeed(self) -> None:
        """Note that the server took something."""
        with self._lock:
            if self._said:
                self._notice(f"Elasticsearch answers again after {time.monotonic() - self._since:.0f} s.")
            self._since, self._said = None, False


def _what(error: Exception) -> str:
    match error:
        case ConnectionTimeout():
            return "does not answer (no answer in time)"
        case Unreachable():
            return f"does not answer ({client.cause(error)})"
        case ApiError():
            return f"is too busy (HTTP {error.status_code})"
        case _:
            return "is too busy (HTTP 429 for single documents)"

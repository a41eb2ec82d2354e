"""When the writing of a log file began, from the step durations that verl prints."""

import mmap
import re
from pathlib import Path

from verl_ingest.load.files import LogFile
from verl_ingest.normalise.lua import Fallback

# As the console prints it (plain or as a numpy number) and as the file logger writes it.
_STEP = re.compile(rb'timing_s/(?:step|testing)"?:\s?(?:np\.\w+\()?(\d+(?:\.\d+)?)')
LATEST_NS = 9_214_646_399 * 10**9  # the end of 2261: the index takes no later time
_HEAD = 1 << 20  # bytes; a file that has no step line in them has none


def began(log: LogFile) -> Fallback:
    """Return the time from which that of lines without one is counted: the last change less what the steps took."""
    changed = min(log.modified_ns, LATEST_NS)
    return Fallback(max(changed - int(min(of_steps(log.path), LATEST_NS / 1e9) * 1e9), 0), "estimated")


def of_steps(path: Path) -> float:
    """Return the seconds that the steps of a file took, 0 where it has no step lines, is compressed or unreadable."""
    try:
        with path.open("rb") as file:
            if b"timing_s/step" not in file.read(_HEAD):
                return 0.0
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                return sum(float(match[1]) for match in _STEP.finditer(text))
    except OSError:  # the reader says it
        return 0.0

"""Find the newest JDK on this machine; `java` on the PATH is often an older one."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from verl_ingest.errors import KitError

MINIMUM = 21  # of Elasticsearch 9; 8.19 would take 17, but one rule is easier to tell


def installed() -> list[Path]:
    """List the folders that may be JDK homes: JAVA_HOME and where Linux and macOS keep theirs."""
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += Path("/usr/lib/jvm").glob("*")
    homes += Path("/Library/Java/JavaVirtualMachines").glob("*/Contents/Home")
    return homes


def newest(homes: Iterable[Path]) -> Path:
    """Return the home with the highest version; raises KitError when none has 21 or later."""
    version, home = max(((_version(home), home) for home in homes), default=((0,), None))
    if home is None or version[0] < MINIMUM:
        found = f"the newest found is {'.'.join(map(str, version))} in {home}" if version[0] else "none was found"
        raise KitError(
            f"Elasticsearch needs a JDK of version {MINIMUM} or later, and {found}; install one and set JAVA_HOME "
            "to its folder, or set ELASTICSEARCH_URL to a running server."
        )
    return home


def _version(home: Path) -> tuple[int, ...]:
    """Read (25, 0, 3) from the line JAVA_VERSION="25.0.3" of the file `release`; (0,) where there is no JDK."""
    try:
        line = re.search(r'^JAVA_VERSION="(\d+(?:\.\d+)*)', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return (0,)
    if line is None or not (home / "bin" / "java").exists():
        return (0,)
    return tuple(int(part) for part in line[1].split("."))

"""Run a program of the cluster (kubectl, ansible-playbook, srun, docker); its failure -> one sentence."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_ingest.errors import KitError

TIMEOUT_S = 600
_ERROR = re.compile(r"error\b|\bunknown\b", re.IGNORECASE)  # OSError too


def run(command: Sequence[str], *, what: str, remedy: str, **other: Any) -> str:
    """Return what a command prints; `other` as for `attempt`.

    Raises KitError where the program is missing, fails or does not end: "`what` failed (its last words); `remedy`".
    """
    done = attempt(command, what=what, remedy=remedy, **other)
    if done.returncode != 0:
        raise KitError(f"{what} failed ({last_words(done.stderr or done.stdout)}); {remedy}.")
    return done.stdout


def attempt(
    command: Sequence[str],
    *,
    what: str,
    remedy: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Return how a command ended, whatever its exit code; `given` is its standard input, `environment` all variables.

    Raises KitError where the program is missing or does not end.
    """
    if shutil.which(command[0], path=environment.get("PATH") if environment else None) is None:
        raise KitError(f"{what} needs {command[0]}, which is not on the PATH; install it.")
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, input=given, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise KitError(f"{what} did not end within {timeout_s:g} s (`{' '.join(command)}`); {remedy}.") from None


def last_words(output: str, *, otherwise: int = -1) -> str:
    """Return the first line that names an error, which the others follow from, else line number `otherwise` of them.

    Its full stop is left out.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if _ERROR.search(line)), lines[otherwise]).rstrip(".")

"""How a kubectl command ended -> what it printed, or one sentence with a remedy."""

import re
from subprocess import CompletedProcess

from verl_ingest.cluster import commands
from verl_ingest.errors import KitError

# What kubectl says -> what to do.
_REMEDIES = {
    r"context .* does not exist": "set deploy.kubernetes.context to one of `kubectl config get-contexts`",
    r"connection to the server|Unable to connect|no such host|timeout": "see that it runs and is reached from here, or "
    "set deploy.kubernetes.context",
    r"Unauthorized|must be logged in|provide credentials": "log in to the cluster again",
    r"forbidden": "have your user given that right; build/kubernetes/rights.yaml is a Role with all of them",
    r"Apply failed with \d+ conflict": "someone else changed it: undo that, or take it back with "
    "`kubectl apply --server-side --force-conflicts --field-manager=verl-ingest -k build/kubernetes`",
}
_SAID = re.compile(r"^(error|Error from server|The connection|Unable to connect)\b.*$", re.MULTILINE)


def output(done: CompletedProcess[str], what: str) -> str:
    """Return what a command has printed; raises KitError with a remedy where it failed."""
    if done.returncode == 0:
        return done.stdout
    said = words(done)
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if re.search(sign, said)), "mend that")
    raise KitError(f"{what} failed ({said}); {remedy}.")


def words(done: CompletedProcess[str]) -> str:
    """Return the line in which kubectl says what is wrong; advice may follow it, and warnings go before."""
    said = _SAID.search(done.stderr)
    return (said[0] if said else commands.last_words(done.stderr or done.stdout)).rstrip(".")

"""Fetch Elasticsearch as Maven Central has it, and unpack it once into the user's cache."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from verl_ingest.errors import KitError

DEFAULT_VERSION = "8.19.21"
ARTIFACT = "org.elasticsearch.distribution.integ-test-zip:elasticsearch:{version}:zip"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 900


def fetch(version: str, cache: Path | None = None) -> Path:
    """Return the folder of the unpacked server; the first call for a version downloads about 100 MB.

    Raises KitError without Maven, without a network, or for a version that is not there.
    """
    cache = cache or platformdirs.user_cache_path("verl-ingest") / "elasticsearch"
    home = cache / f"elasticsearch-{version}"
    if home.exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"elasticsearch-{version}.lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not home.exists():  # another process may have brought it while this one waited for the lock
            with zipfile.ZipFile(_download(version, Path(scratch))) as archive:
                archive.extractall(scratch)
            os.rename(Path(scratch) / home.name, home)
    return home


def _download(version: str, folder: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        raise KitError(
            "Elasticsearch is fetched with Maven, and there is no mvn on the PATH; install it (Debian: apt-get "
            "install maven), or set ELASTICSEARCH_URL to a running server."
        )
    print(f"Fetching Elasticsearch {version} (about 100 MB, once) ...", file=sys.stderr, flush=True)
    artifact = ARTIFACT.format(version=version)
    try:
        maven_run = subprocess.run(
            [maven, "-B", "-q", "-Dstyle.color=never", COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"],
            cwd=folder,  # a pom.xml in the caller's folder must not take part
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {FETCH_SECONDS} s"
    else:
        if maven_run.returncode == 0:
            return folder / f"elasticsearch-{version}.zip"
        reason = next((line for line in maven_run.stdout.splitlines() if "ERROR" in line), "it gave no reason")
    raise KitError(
        f"Maven could not fetch {artifact}: {reason}; check the network and Maven's settings, or set "
        "ELASTICSEARCH_URL to a running server."
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

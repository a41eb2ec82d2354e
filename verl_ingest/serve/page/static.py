"""The files that the pages load: the kit's own style and script, and the charting library's, all served by the kit."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OWN = Path(__file__).parent / "static"
CHARTS = "dygraph.js"


def _library() -> Path:
    """Return the script that the package dygraphs ships, without importing the package."""
    [folder] = find_spec("dygraphs").submodule_search_locations
    return Path(folder) / "assets" / "dygraph-combined.js"


FILES = {path.name: path for path in sorted(OWN.iterdir())} | {CHARTS: _library()}


@cache
def address(name: str, base: str = "") -> str:
    """Return the address of a file; it changes with the file, so that browsers may keep the file for ever."""
    digest = hashlib.sha256(FILES[name].read_bytes()).hexdigest()[:12]
    return f"{base}/static/{name}?v={digest}"

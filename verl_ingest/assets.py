"""Where the files outside the package lie: beside it in a wheel, in the checkout otherwise."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def path(name: str) -> Path:
    """Return the path of a file under deploy/ or templates/, such as ``deploy/fluent-bit/normalize.lua``."""
    packaged = PACKAGE / name
    return packaged if packaged.exists() else PACKAGE.parent / name

"""The console that commands print to."""

from rich.console import Console

WIDEST = 100


def console() -> Console:
    """Return a console of the terminal's width, at most 100 columns; a pipe gets 100."""
    found = Console(highlight=False)
    return Console(highlight=False, width=min(found.width, WIDEST) if found.is_terminal else WIDEST)

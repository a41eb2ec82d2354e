"""Views into HTML. Nothing inline but data: the pages work under a policy that allows no script or style but files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import orjson
from markupsafe import Markup

from verl_ingest.serve.page import markdown, static
from verl_ingest.serve.page.addresses import Addresses
from verl_ingest.serve.page.episode import Place
from verl_ingest.serve.page.view import StepView

TEMPLATES = Path(__file__).parent / "templates"
# What could end a script element, open another, or break a line of JavaScript.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def step_html(view: StepView, *, base: str = "") -> str:
    """Return the page of a step; `base` is where the service answers."""
    return html("step.html.j2", base=base, view=view, markdown=markdown.text(view))


def episode_html(place: Place, addresses: Addresses) -> str:
    """Return the parts of a step's page that come later, for its script to put where they belong."""
    return html("episode.html.j2", place=place, to=addresses)


def unknown_step_html(
    sentence: str, nearest: Sequence[tuple[str, str]], *, base: str = "", missing: bool = True
) -> str:
    """Return the page that has no step to show: a sentence, and (words, address) of where to go instead.

    Where a step is `missing`, it says why that may be.
    """
    return html("unknown_step.html.j2", base=base, sentence=sentence, nearest=nearest, missing=missing)


def html(template: str, *, base: str = "", **values: Any) -> str:
    """Render a template of a page; it can name `base`, and `static(NAME)` for the address of a file."""
    return _ENVIRONMENT.get_template(template).render(
        base=base, static=lambda name: static.address(name, base), **values
    )


def embedded(value: Any) -> Markup:
    """Write a value as JSON that is safe inside a script element."""
    return Markup(orjson.dumps(value).decode().translate(_ESCAPES))


def visible(value: Any) -> Any:
    """Show signs that a browser would hide or obey: control characters, and those that turn the direction of text."""
    return value.translate(_VISIBLE) if isinstance(value, str) and not isinstance(value, Markup) else value


_TURNING = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF]
_CONTROLS = [code for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_VISIBLE = {code: f"\\x{code:02x}" for code in _CONTROLS} | {code: f"\\u{code:04x}" for code in _TURNING}

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    undefined=jinja2.StrictUndefined,
    autoescape=True,
    finalize=visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"embedded": embedded}

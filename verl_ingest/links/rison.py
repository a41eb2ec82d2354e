"""RISON, the notation of values in Kibana's URLs.

Own encoder: both that PyPI has leave some texts with a newline unquoted, which Kibana then can't read.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

Value = None | bool | int | str | Sequence["Value"] | Mapping[str, "Value"]

# Texts that need no quotes; RISON allows more, but nothing here wants them.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


def encode(value: Value) -> str:
    """Write a value as RISON."""
    match value:
        case None:
            return "!n"
        case bool():
            return "!t" if value else "!f"
        case int():
            return str(value)
        case str():
            return value if _PLAIN.fullmatch(value) else "'" + re.sub("(['!])", r"!\1", value) + "'"
        case Mapping():
            return f"({','.join(f'{encode(name)}:{encode(part)}' for name, part in value.items())})"
        case _:
            return f"!({','.join(map(encode, value))})"


def in_url(value: Value) -> str:
    """Write a value as RISON for the hash of a URL.

    More is escaped than Kibana needs: brackets and quotes would end the link in chats, Markdown and terminals.
    """
    return quote(encode(value), safe=":")

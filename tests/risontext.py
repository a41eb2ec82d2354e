"""Reads RISON, written from its grammar and not from the encoder."""

import re
from typing import Any

_WORD = re.compile(r"[^ '!:(),*@$]+")
_NUMBER = re.compile(r"-?\d+")
_CONSTANTS = {"!n": None, "!t": True, "!f": False}


def decode(text: str) -> Any:
    """Return the value that a text stands for; raises ValueError."""
    value, rest = _value(text)
    if rest:
        raise ValueError(f"left over: {rest!r}")
    return value


def _value(text: str) -> tuple[Any, str]:
    if text[:2] in _CONSTANTS:
        return _CONSTANTS[text[:2]], text[2:]
    if text.startswith("!("):
        return _list(text[2:])
    if text.startswith("("):
        return _object(text[1:])
    if text.startswith("'"):
        return _string(text[1:])
    match = _WORD.match(text)
    if match is None:
        raise ValueError(f"no value at {text!r}")
    word, rest = match[0], text[match.end() :]
    if word[0].isdigit() or word[0] == "-":
        if not _NUMBER.fullmatch(word):
            raise ValueError(f"not a number: {word!r}")
        return int(word), rest
    return word, rest


def _string(text: str) -> tuple[str, str]:
    found = ""
    while True:
        plain = re.match(r"[^'!]*", text)[0]
        found, text = found + plain, text[len(plain) :]
        if text[:1] == "'":
            return found, text[1:]
        if text[:2] not in ("!'", "!!"):
            raise ValueError(f"no end of a text at {text!r}")
        found, text = found + text[1], text[2:]


def _list(text: str) -> tuple[list[Any], str]:
    found: list[Any] = []
    while not text.startswith(")"):
        if found:
            text = _after(",", text)
        value, text = _value(text)
        found.append(value)
    return found, text[1:]


def _object(text: str) -> tuple[dict[str, Any], str]:
    found: dict[str, Any] = {}
    while not text.startswith(")"):
        if found:
            text = _after(",", text)
        name, text = _value(text)
        if not isinstance(name, str):
            raise ValueError(f"not a name: {name!r}")
        found[name], text = _value(_after(":", text))
    return found, text[1:]


def _after(mark: str, text: str) -> str:
    if not text.startswith(mark):
        raise ValueError(f"no {mark} at {text!r}")
    return text[1:]

"""The part of KQL that the saved searches use, as the bool query that Kibana sends for it."""

import re
from typing import Any

_TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign>[():])|(?P<word>[^\s():"]+))')


class Kql:
    """`query` is the bool query, `fields` are those it names. Raises ValueError for what is no KQL."""

    def __init__(self, text: str) -> None:
        self.tokens = self._split(text)
        self.fields: list[str] = []
        self.query = self._either()
        if self.tokens:
            raise ValueError(f"left over: {self.tokens}")

    @staticmethod
    def _split(text: str) -> list[str]:
        tokens, at = [], 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"no KQL from {text[at:]!r}")
            tokens.append(match[0].strip())
            at = match.end()
        return tokens

    def _next(self, *expected: str) -> str:
        token = self.tokens.pop(0) if self.tokens else "the end"
        if expected and token not in expected:
            raise ValueError(f"{token} instead of {' or '.join(expected)}")
        return token

    def _either(self) -> dict[str, Any]:
        parts = [self._both()]
        while self.tokens[:1] == ["or"]:
            self._next()
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else {"bool": {"should": parts, "minimum_should_match": 1}}

    def _both(self) -> dict[str, Any]:
        parts = [self._one()]
        while self.tokens[:1] == ["and"]:
            self._next()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else {"bool": {"filter": parts}}

    def _one(self) -> dict[str, Any]:
        if self.tokens[:1] == ["("]:
            self._next("(")
            inner = self._either()
            self._next(")")
            return inner
        field = self._next()
        if not re.fullmatch(r"[\w@./]+", field):
            raise ValueError(f"{field} is no field")
        self.fields.append(field)
        self._next(":")
        if self.tokens[:1] != ["("]:
            return self._value(field)
        self._next("(")
        values = [self._value(field)]
        while self._next("or", ")") == "or":
            values.append(self._value(field))
        return {"bool": {"should": values, "minimum_should_match": 1}}

    def _value(self, field: str) -> dict[str, Any]:
        value = self._next()
        if value in ("(", ")", ":", "and", "or", "the end"):
            raise ValueError(f"{field} has no value")
        if value == "*":
            return {"exists": {"field": field}}
        return {"match_phrase" if value.startswith('"') else "match": {field: value.strip('"')}}

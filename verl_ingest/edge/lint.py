"""What Fluent Bit's own check misses in a configuration: names, values, and the mistakes that lose lines.

`fluent-bit --dry-run` accepts unknown service keys, wrong values and a shared database; see properties.yml for what
this version takes.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import yaml

from verl_ingest import assets
from verl_ingest.errors import InputError

_KINDS = {"inputs": "input", "filters": "filter", "outputs": "output"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_VALUES = {
    "boolean": re.compile(r"(on|off|true|false|yes|no)", re.IGNORECASE),
    "integer": re.compile(r"-?\d+"),
    "double": re.compile(r"-?\d+(\.\d+)?"),
    "size": re.compile(r"\d+[kmg]?b?|false", re.IGNORECASE),
    "time": re.compile(r"\d+(\.\d+)?[smhd]?", re.IGNORECASE),
}


def parse(text: str, name: str) -> dict[str, Any]:
    """Return a configuration as data, `on` and `off` as they are written. Raises InputError where it is no YAML."""
    try:
        config = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(f"{name}{f', line {mark.line + 1}' if mark else ''}: not YAML; mend it.") from None
    if not isinstance(config, dict) or not isinstance(config.get("pipeline"), dict):
        raise InputError(f"{name}: no pipeline in it; is this Fluent Bit's configuration?")
    return config


def problems(config: Mapping[str, Any]) -> list[str]:
    """Return a sentence for everything in a configuration that is unknown, wrong, or loses lines."""
    known = yaml.safe_load((assets.PACKAGE / "edge" / "properties.yml").read_text(encoding="utf-8"))
    pipeline = config["pipeline"]
    return [
        *_unknown(config.get("service", {}), known["service"], "service"),
        *_service(config.get("service", {})),
        *(
            problem
            for section, kind in _KINDS.items()
            for plugin in pipeline.get(section, [])
            for problem in _plugin(plugin, known[section], kind)
        ),
        *_inputs(pipeline.get("inputs", [])),
        *_outputs(pipeline.get("outputs", []), pipeline.get("inputs", [])),
    ]


def _plugin(plugin: Mapping[str, Any], known: Mapping[str, Any], kind: str) -> Iterator[str]:
    name = plugin.get("name", "")
    if name not in known:
        yield f"{kind} {name!r}: the kit knows no such plugin; known are {', '.join(known)}."
        return
    where = f"{kind} {plugin.get('alias', name)}"
    yield from _unknown({key: value for key, value in plugin.items() if key != "name"}, known[name], where)
    for key, value in plugin.items():
        pattern = _VALUES.get(known[name].get(key, ""))
        if pattern and not pattern.fullmatch(str(value)):
            yield f"{where}: {key} is {value!r}; it should be of type {known[name][key]}."


def _unknown(given: Mapping[str, Any], known: Mapping[str, str], where: str) -> Iterator[str]:
    for key in given:
        if key not in known:
            yield f"{where}: Fluent Bit has no property {key}; it would be ignored or refused."


def _service(service: Mapping[str, Any]) -> Iterator[str]:
    if not _is_on(service.get("storage.keep.rejected")):
        yield "service: without storage.keep.rejected no file keeps what Fluent Bit gives up sending."


def _inputs(inputs: list[Mapping[str, Any]]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for tail in (each for each in inputs if each.get("name") == "tail"):
        alias, database = tail.get("alias", "tail"), tail.get("db")
        if not database:
            yield f"input {alias}: without db every restart reads all files again."
        elif database in seen:
            yield f"input {alias}: db {database} is also {seen[database]}'s; each would delete the other's offsets."
        else:
            seen[database] = alias
        if tail.get("storage.type") != "filesystem":
            yield f"input {alias}: without storage.type filesystem a crash loses lines whose offset is saved already."
        if not _is_on(tail.get("read_from_head")):
            yield f"input {alias}: without read_from_head what was written before the start is never read."
        if _is_on(tail.get("threaded")):
            yield f"input {alias}: threaded loses lines in a crash, whatever the storage."
        if not _is_on(tail.get("truncate_long_lines")):
            yield f"input {alias}: without truncate_long_lines the first long line ends the reading of its file."


def _outputs(outputs: list[Mapping[str, Any]], inputs: list[Mapping[str, Any]]) -> Iterator[str]:
    for output in (each for each in outputs if each.get("name") == "es"):
        alias, host = output.get("alias", "es"), output.get("host", "")
        if "tls.verify" in output and not _is_on(output["tls.verify"]) and host not in _LOOPBACK:
            yield f"output {alias}: tls.verify is off for {host}; set elasticsearch_ca_certs instead."
        if any(not output.get(key, "${").startswith("${") for key in ("http_passwd", "http_api_key")):
            yield f"output {alias}: a secret stands in the configuration; give it by agent.secret_file."
        if output.get("id_key") != "event_id" or output.get("write_operation") != "index":
            yield f"output {alias}: without id_key event_id and write_operation index a replay writes lines twice."
        if output.get("retry_limit") != "no_limits":
            yield f"output {alias}: with a retry_limit an outage loses what has used up its tries."
    for tag in sorted({each.get("tag", "") for each in inputs}):
        if not any(fnmatchcase(tag, output.get("match", "")) for output in outputs):
            yield f"tag {tag}: no output takes it; its lines would go nowhere."


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("on", "true", "yes")

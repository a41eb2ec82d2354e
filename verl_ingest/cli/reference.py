"""docs/reference/cli.md: what the help of every command says, in a form that no version of a library changes."""

import inspect
from typing import Any

PATH = "docs/reference/cli.md"
_HEAD = """<!-- Generated from the commands' own help; edit that, then run `verl-ingest render`. -->
# Commands

Every command takes `--settings FILE` in front of its name: settings to use instead of settings.yml in the working
folder. Exit codes: 0 done, 1 something is wrong and a sentence on stderr says what to do, 2 the words of the command
are wrong.
"""


def page(root: Any) -> str:
    """Return the page for all commands of a command group, in the order of its help."""
    return _HEAD + "".join(_section(name, command) for name, command in root.commands.items())


def _section(name: str, command: Any) -> str:
    rows = "".join(f"| {_word(parameter)} | {parameter.help} |\n" for parameter in command.params)
    table = f"\n| | |\n|---|---|\n{rows}" if rows else ""
    return f"\n## {name}\n\n{inspect.cleandoc(command.help)}\n{table}"


def _word(parameter: Any) -> str:
    """Return how a parameter is written: an argument's name, or an option's names and value."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join(f"`{option}{value}`" for option in parameter.opts)

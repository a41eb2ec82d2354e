"""What must be right before anything is changed: settings, servers, cluster, Fluent Bit."""

from collections.abc import Iterator
from pathlib import Path

from verl_ingest.checks import assets, links, login, server
from verl_ingest.checks.check import Check, answered
from verl_ingest.cluster.target import Target
from verl_ingest.edge import fluentbit, lint
from verl_ingest.settings import Settings


def checks(settings: Settings, target: Target, folder: Path, *, overwrite: bool = False) -> Iterator[Check]:
    """Yield a verdict on each thing that the deployment of these settings needs; nothing is changed.

    With `overwrite` what someone else changed under the kit's names is no obstacle.
    """
    yield from _configuration(settings)
    yield from _elasticsearch(settings, target, overwrite)
    yield from links.check(settings, before_apply=True, overwrite=overwrite)
    yield from answered(target.name, lambda: target.check(folder))


def _configuration(settings: Settings) -> Iterator[Check]:
    name = "the rendered fluent-bit.yaml"
    found = lint.problems(lint.parse(fluentbit.render(settings), name))
    for problem in found:
        yield Check("configuration", "wrong", f"{name}: {problem}", "mend the settings of `agent`")
    if not found:
        yield Check("configuration", "fine", "Nothing in it is unknown, nothing loses lines.")


def _elasticsearch(settings: Settings, target: Target, overwrite: bool) -> Iterator[Check]:
    for check in server.check(settings, before_apply=True):
        yield check
        if check.name == server.NAME and check.verdict == "wrong":
            return  # what does not answer can't be asked for more
    if target.hands_out_secret:
        yield from login.check(settings)
    yield from assets.check(settings, before_apply=True, overwrite=overwrite)

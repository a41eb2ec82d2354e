"""What must be right before anything is changed: settings, servers, cluster, Fluent Bit."""

from collections.abc import Iterator
from pathlib import Path

from verl_ingest.checks import assets, links, login, server
from verl_ingest.checks.check import Check, answered
from verl_ingest.cluster.target import Target
from verl_ingest.context.words import listed
from verl_ingest.edge import lint
from verl_ingest.settings import Settings


def checks(settings: Settings, target: Target, folder: Path, *, overwrite: bool = False) -> Iterator[Check]:
    """Yield a verdict on each thing that the deployment of these settings needs; nothing is changed.

    With `overwrite` what someone else changed under the kit's names is no obstacle.
    """
    yield from _configuration(folder)
    yield from _elasticsearch(settings, target, overwrite)
    yield from links.check(settings, before_apply=True, overwrite=overwrite)
    yield from answered(target.name, lambda: target.check(folder))


def _configuration(folder: Path) -> Iterator[Check]:
    rendered = sorted(folder.rglob("fluent-bit*.yaml"))
    found = [(path, what) for path in rendered for what in lint.problems(lint.parse(path.read_text(), str(path)))]
    for path, what in found:
        yield Check("configuration", "wrong", f"{path}: {what}", "mend the settings of `agent`")
    if rendered and not found:
        names = listed([str(path.relative_to(folder)) for path in rendered])
        yield Check("configuration", "fine", f"Nothing in {names} is unknown, nothing loses lines.")


def _elasticsearch(settings: Settings, target: Target, overwrite: bool) -> Iterator[Check]:
    for check in server.check(settings, before_apply=True):
        yield check
        if check.name == server.NAME and check.verdict == "wrong":
            return  # what does not answer can't be asked for more
    if target.hands_out_secret:
        yield from login.check(settings)
    yield from assets.check(settings, before_apply=True, overwrite=overwrite)

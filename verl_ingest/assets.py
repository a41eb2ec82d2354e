"""Where the files outside the package lie: beside it in a wheel, in the checkout otherwise."""

from pathlib import Path

import jinja2

PACKAGE = Path(__file__).parent


def path(name: str) -> Path:
    """Return the path of a file under deploy/ or templates/, such as ``deploy/fluent-bit/normalize.lua``."""
    packaged = PACKAGE / name
    return packaged if packaged.exists() else PACKAGE.parent / name


def template(name: str) -> jinja2.Template:
    """Return a template of templates/; what it names and is not given is an error when it is rendered."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)

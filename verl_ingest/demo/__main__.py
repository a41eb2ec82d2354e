"""`make demo`: an Elasticsearch, the templates, the sample logs, the context of the step where something broke."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from verl_ingest.demo import logs
from verl_ingest.errors import KitError
from verl_ingest.local import compose, elasticsearch

CHECKOUT = Path(__file__).parents[2]
FOLDER = Path(".demo")
RUN = "ppo-demo"
STEP = 128


def main() -> None:
    """Run the demo; exit with 1 and one sentence where a part of it can't be done."""
    try:
        environment, stop = server()
        load = ["load", str(sample()), "--timezone", "Etc/UTC"]  # the console's times have no zone
        for command in (["apply"], load, ["runs"], ["step", RUN, str(STEP)]):
            run(command, environment)
    except KitError as error:
        sys.exit(f"error: {error}")
    print(NEXT.format(exports=exports(environment), run=RUN, stop=stop))


def server() -> tuple[dict[str, str], str]:
    """Return the variables that reach an Elasticsearch (the given one, Docker's, or a local one) and how to stop it."""
    given = {name: value for name, value in os.environ.items() if name.startswith("ELASTICSEARCH_")}
    stop_local = f"{sys.executable} -m verl_ingest.local stop"
    if "ELASTICSEARCH_URL" in given:
        say(f"Elasticsearch: the given {given['ELASTICSEARCH_URL']}")
        local = elasticsearch.status()
        is_local = local is not None and local.url == given["ELASTICSEARCH_URL"]
        return given, stop_local if is_local else "this server was running before; the demo leaves it so"
    if (CHECKOUT / "docker-compose.yml").exists() and compose.is_available():
        say("Elasticsearch: starting the one of docker-compose.yml")
        login = compose.start(CHECKOUT)
        return {
            "ELASTICSEARCH_URL": login.url,
            "ELASTICSEARCH_USERNAME": login.username,
            "ELASTICSEARCH_PASSWORD": login.password,
        }, "make down"
    say("Elasticsearch: starting a local one (no Docker here; the first time it is fetched with Maven)")
    return {"ELASTICSEARCH_URL": elasticsearch.start().url}, stop_local


def sample() -> Path:
    """Write the sample logs, the same ones each time, and return their folder."""
    folder = FOLDER / RUN
    logs.write(folder)
    return folder


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run a command of the kit as a user would, shown before it runs."""
    say(f"$ verl-ingest {shlex.join(command)}")
    if subprocess.run([sys.executable, "-m", "verl_ingest", *command], env=os.environ | environment).returncode != 0:
        raise KitError(f"`verl-ingest {shlex.join(command)}` failed; its message above says why.")


def exports(environment: dict[str, str]) -> str:
    """Return the lines that let the user's own shell reach the same server."""
    return "\n".join(f"  export {name}={shlex.quote(value)}" for name, value in environment.items())


def say(text: str) -> None:
    """Print a heading; flushed, since the commands print for themselves."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


NEXT = """
The server goes on. To ask more, in this folder:

{exports}
  source .venv/bin/activate
  verl-ingest step {run} 137           # a NaN reward
  verl-ingest step {run} first-bad     # where its trouble began
  verl-ingest step {run} last --json   # for programs
  verl-ingest share 'kl_divergence > 0.05' --last 10m --run {run}
  verl-ingest load YOUR_RUN_FOLDER     # your own logs

To stop it: {stop}"""

if __name__ == "__main__":
    main()

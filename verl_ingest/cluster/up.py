"""`make up`: the whole stack of docker-compose.yml, in a checkout of the kit."""

import sys

from verl_ingest import settings
from verl_ingest.cluster import targets
from verl_ingest.cluster.compose import CHECKOUT, DASHBOARDS, GRAFANA, KIBANA, PAGES, Compose, has
from verl_ingest.errors import KitError
from verl_ingest.local import compose


def main() -> None:
    """Start the whole stack, and say where it is found."""
    try:
        compose.write_environment(CHECKOUT)
        target = Compose(settings.load())
        for check in target.check(targets.BUILD):
            if check.verdict == "wrong":
                raise KitError(f"{check.found} To go on, {check.remedy}.")
        for line in target.roll_out(targets.build(target)):
            print(line)
    except KitError as error:
        sys.exit(f"error: {error}")
    addresses = [("runs and steps", f"{PAGES}/runs", "verl", "VERL_SERVICE_PASSWORD")]
    if has(DASHBOARDS):
        addresses.append(("Kibana", KIBANA, compose.USERNAME, "ELASTIC_PASSWORD"))
        addresses.append(("Grafana", GRAFANA, "admin", "GRAFANA_PASSWORD"))
    addresses.append(("Elasticsearch", compose.URL, compose.USERNAME, "ELASTIC_PASSWORD"))
    for name, url, user, password in addresses:
        print(f"{name:<16}{url:<28}user {user}, password {password} of .env")


if __name__ == "__main__":
    main()

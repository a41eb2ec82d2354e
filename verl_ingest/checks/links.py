"""What browsers are led to: Kibana, Grafana and the kit's own service, and the assets in the first two."""

from base64 import b64encode
from collections.abc import Iterator
from functools import partial

from verl_ingest.checks import drift
from verl_ingest.checks.check import Check, answered
from verl_ingest.errors import KitError
from verl_ingest.index import client
from verl_ingest.install import grafana, http, kibana
from verl_ingest.kibana import objects
from verl_ingest.links import page
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

KIBANA, GRAFANA, SERVICE = "Kibana", "Grafana", "service"


def check(settings: Settings, *, before_apply: bool = False, overwrite: bool = False) -> Iterator[Check]:
    """Yield a check on each that the settings name, and on its assets.

    Before an `apply`, which brings what is missing, just those assets count which it would not replace (none with
    `overwrite`), and the service need not be there yet.
    """
    judge = partial(drift.judge, lacking="watch", before_apply=before_apply)
    yield from answered(KIBANA, lambda: _kibana(settings, judge, overwrite))
    yield from answered(GRAFANA, lambda: _grafana(settings, judge, overwrite))
    if not before_apply:
        yield from answered(SERVICE, lambda: _service(settings))


def _kibana(settings: Settings, judge: partial[Check], overwrite: bool) -> Iterator[Check]:
    if settings.kibana_url is None:
        yield _unset(KIBANA, "kibana_url")
        return
    with kibana.connect(settings) as server:
        rows = kibana.compare(server, objects.objects(settings), overwrite=overwrite)
    yield Check(KIBANA, "fine", f"It answers at {settings.kibana_url}.")
    yield judge("Kibana's assets", rows)


def _grafana(settings: Settings, judge: partial[Check], overwrite: bool) -> Iterator[Check]:
    if settings.grafana_url is None:
        yield _unset(GRAFANA, "grafana_url")
        return
    with grafana.connect(settings) as server:
        rows = grafana.compare(server, settings, overwrite=overwrite) if settings.grafana.token else None
    yield Check(GRAFANA, "fine", f"It answers at {settings.grafana_url}.")
    if rows is None:
        why = "Not looked at, since there is no token to ask with."
        yield Check("Grafana's assets", "unknown", why, "set VERL_INGEST_GRAFANA__TOKEN")
    else:
        yield judge("Grafana's assets", rows)


def _service(settings: Settings) -> Iterator[Check]:
    """Look whether the service is up, whether it reaches its Elasticsearch, and whether that is the same as ours."""
    if settings.service_url is None:
        yield _unset(SERVICE, "service_url")
        return
    address = http.Address(
        name="The service",
        url=settings.service_url,
        setting="service_url",
        headers=_login(settings),
        login="set service.username and service.password to the ones that it has",
        privileges="it lets in those whom its proxy names",
    )
    with http.connect(address, settings.elasticsearch_ca_certs) as server:
        if server.send("GET", "/healthz").data != b"ok\n":
            raise server.foreign()
        status, answer = server.ask("GET", f"{page.API}/runs?limit=1000", accept=(503,))
    if status == 503:
        raise KitError(f"The service answers at {settings.service_url}, and says: {answer['error']}")
    yield _same(settings, {run["run_id"] for run in answer})


def _same(settings: Settings, shown: set[str]) -> Check:
    """Return the verdict on the runs that the service shows: the newest of ours must be among them."""
    found = f"It answers at {settings.service_url}"
    try:
        with client.explained(settings), client.connect(settings) as server:
            newest = ElasticStore(server).newest_run()
    except KitError:  # said elsewhere
        return Check(SERVICE, "fine", f"{found}.")
    if newest is None or newest in shown:
        return Check(SERVICE, "fine", f"{found}, from the same Elasticsearch.")
    remedy = "start it with the ELASTICSEARCH_URL that is used here"
    return Check(SERVICE, "wrong", f"{found}, and does not know the newest run, {newest}.", remedy)


def _login(settings: Settings) -> dict[str, str]:
    own = settings.service
    if own.username is None or own.password is None:
        return {}
    pair = f"{own.username}:{own.password.get_secret_value()}"
    return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _unset(name: str, setting: str) -> Check:
    return Check(name, "fine", f"Not used: {setting} is not set.")

"""Settings -> Elasticsearch client; what goes wrong with it -> one sentence with a remedy."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import sleep
from typing import Any
from urllib.parse import urlsplit

from elastic_transport import ApiResponseMeta, ConnectionTimeout, TlsError, TransportError
from elastic_transport import ConnectionError as Unreachable
from elasticsearch import ApiError, Elasticsearch, OrjsonSerializer, UnsupportedProductError

from verl_ingest.errors import SettingsError, StoreError
from verl_ingest.index import roles
from verl_ingest.settings import Settings

# The longest request is a merge or a search over months; an answer takes milliseconds otherwise.
TIMEOUT_S = 60
# A new index is there for searches within some milliseconds, on a busy cluster within seconds; longer is a lost node.
SHARDS_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2)
# What a proxy in front of Elasticsearch answers by itself.
_OF_A_PROXY = (401, 403, 407, 413, 429, 502, 503, 504)
_PORTS = {"http": 80, "https": 443}
_UNAUTHORIZED = re.compile(
    r"action \[(?P<action>[^]]+)\] is unauthorized for (?P<who>.+?)(?: with effective roles.*?)?"
    r"(?: on indices \[(?P<indices>[^]]*)\])?"
    r", this action is granted by the (?P<kind>\w+) privileges \[(?P<privileges>[^]]+)"
)


class _Patient(Elasticsearch):
    """A client whose searches wait for an index that the first record of a day has just made.

    Such an index has no shard that can be searched in its first moments: without patience, whoever asks at midnight
    is refused.
    """

    def perform_request(self, method: str, path: str, **options: Any) -> Any:
        """Perform a request; one that no shard was there for is sent again after a while."""
        for wait_s in SHARDS_WAITS_S:
            try:
                answer = super().perform_request(method, path, **options)
            except ApiError as error:
                if not _misses_shards(error.body):
                    raise
            else:
                if not any(map(_misses_shards, _parts(answer.body))):
                    return answer
            sleep(wait_s)
        return super().perform_request(method, path, **options)


def connect(settings: Settings, *, timeout_s: int = TIMEOUT_S) -> Elasticsearch:
    """Return a client of the server that the settings name; nothing is sent yet.

    Raises SettingsError when the file of elasticsearch_ca_certs is needed and not there. Use it inside `explained`.
    """
    options: dict[str, Any] = {
        "request_timeout": timeout_s,
        "retry_on_status": (502, 503, 504),
        "serializer": OrjsonSerializer(),  # reading answers is half the time of a step's context otherwise
    }
    if settings.elasticsearch_api_key:
        options["api_key"] = settings.elasticsearch_api_key.get_secret_value()
    if settings.elasticsearch_username and settings.elasticsearch_password:
        options["basic_auth"] = (settings.elasticsearch_username, settings.elasticsearch_password.get_secret_value())
    if settings.elasticsearch_ca_certs and settings.elasticsearch_url.startswith("https:"):
        if not settings.elasticsearch_ca_certs.is_file():
            raise SettingsError(f"elasticsearch_ca_certs: there is no file {settings.elasticsearch_ca_certs}.")
        options["ca_certs"] = str(settings.elasticsearch_ca_certs)
    return _Patient(_with_port(settings.elasticsearch_url), **options)


@contextmanager
def explained(settings: Settings, *, timeout_s: int = TIMEOUT_S) -> Iterator[None]:
    """Turn every error of the client inside the block into a StoreError that says what to do."""
    try:
        yield
    except (TransportError, ApiError, UnsupportedProductError) as error:
        raise explain(error, settings, timeout_s=timeout_s) from error


def explain(error: Exception, settings: Settings, *, timeout_s: int = TIMEOUT_S) -> StoreError:
    """Return one sentence on an error of the client: what happened, where, what next."""
    server = f"Elasticsearch at {settings.elasticsearch_url}"
    match error:
        case UnsupportedProductError():
            text = foreign(settings.elasticsearch_url)
        case ApiError() if error.status_code not in _OF_A_PROXY and not is_elasticsearch(error.meta):
            text = foreign(settings.elasticsearch_url)
        case ApiError():
            text = _refusal(error, server, settings)
        case TlsError():
            text = _tls_failure(error.message, server)
        case ConnectionTimeout():
            text = f"{server} did not answer in {timeout_s} s; see its log, or try again when it is less busy."
        case Unreachable() if "Connection aborted" in error.message and settings.elasticsearch_url.startswith("http:"):
            text = (
                f"{server} closed the connection; write https:// in ELASTICSEARCH_URL if it speaks TLS, or see its log."
            )
        case Unreachable():
            text = f"{server} can't be reached ({cause(error)}); start it, or set ELASTICSEARCH_URL."
        case _:
            text = f"{server} gave an answer that can't be read ({error}); is there a proxy in between?"
    return StoreError(text)


def cause(error: Unreachable) -> str:
    """Return the operating system's words for why a server can't be reached."""
    why = re.search(r"\[Errno -?\d+\] ([^)]+)", error.message)
    return why[1] if why else error.message


def foreign(url: str) -> str:
    """Return the sentence on a server that is something else."""
    return f"What answers at {url} is not Elasticsearch; set ELASTICSEARCH_URL."


def is_elasticsearch(meta: ApiResponseMeta) -> bool:
    """Tell whether an answer comes from Elasticsearch: it says so in a header."""
    return meta.headers.get("x-elastic-product") == "Elasticsearch"


def distrusted(text: str, server: str, setting: str) -> str | None:
    """Return the sentence on a certificate that is not to be trusted, None where OpenSSL's `text` is on another matter.

    `setting` is the one that has the server's address.
    """
    found = re.search(r"certificate verify failed: (?P<why>[^(]+?)\.? *\(", text)
    if found is None:
        return None
    if "mismatch" in found["why"]:
        return f"The certificate of {server} is for another name ({found['why']}); write its name in {setting}."
    if "expired" in found["why"]:
        return f"The certificate of {server} is too old ({found['why']}); renew it there."
    return (
        f"The certificate of {server} is not trusted ({found['why']}); "
        "set elasticsearch_ca_certs to the PEM file of the authority that signed it."
    )


def misshapen(indices: Sequence[str]) -> str:
    """Return the sentence on indices that a first record shaped, since `apply` had not been run."""
    one = len(indices) == 1
    return (
        f"{'Index' if one else 'Indices'} {', '.join(indices)} {'was' if one else 'were'} made without the kit's "
        f"templates; run `verl-ingest apply`, delete {'that index' if one else 'those indices'} "
        f"(DELETE {','.join(indices)}), then load or `audit --repair` {'its' if one else 'their'} files again."
    )


def _refusal(error: ApiError, server: str, settings: Settings) -> str:
    """Say why the server refused a request."""
    kind, reason = reason_of(error)
    if "flood-stage" in reason:
        index = re.search(r"index \[([^]]+)\]", reason)
        return (
            f"The disk of {server} is too full, so it locked {index[1] if index else 'its indices'} against writing; "
            "delete old indices or add space, then run this again (Elasticsearch unlocks by itself)."
        )
    if shaped := re.match(r"Fielddata is disabled on \[[^]]+\] in \[([^]]+)\]", reason):
        return misshapen([shaped[1]])
    match error.status_code:
        case 401 if settings.elasticsearch_api_key:
            return f"{server} does not accept the API key; set ELASTICSEARCH_API_KEY to a valid one."
        case 401 if settings.elasticsearch_username:
            return (
                f"{server} does not accept the password of {settings.elasticsearch_username}; "
                "mend ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD."
            )
        case 401:
            return (
                f"{server} wants a login; "
                "set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, or ELASTICSEARCH_API_KEY."
            )
        case 403 if found := _UNAUTHORIZED.search(reason):
            where = f" on {found['indices']}" if found["indices"] else ""
            privileges = found["privileges"].split(",")
            role = roles.helpful(found["kind"], privileges, on=found["indices"])
            remedy = f"give it the role {role}, or grant" if role else "grant"
            return (
                f"{server} does not let {found['who']} {_deed(found['action'])}; {remedy} the {found['kind']} "
                f"privilege {privileges[0]}{where} (for {found['action']})."
            )
        case 413:
            return (
                f"{server} or a proxy before it takes no request this large; raise its limit (http.max_content_length)."
            )
        case 429:
            return f"{server} is too busy ({reason}); try again later."
        case 503 if _misses_shards(error.body):
            return (
                f"{server} can't read all of its data now ({reason.partition('. Consider')[0]}); a node of it is away "
                "or just starting: see its GET _cluster/health, and try again when that is not red."
            )
        case 502 | 503 | 504:
            return f"{server} is not ready ({reason}); see its log, or try again in a moment."
    return f"{server} refused the request ({kind}): {reason}."


def _misses_shards(answer: Any) -> bool:
    """Tell whether an answer, or one of several, says that shards which it needs are not there."""
    match answer:
        case {"status": 503, "error": {"type": "search_phase_execution_exception"}}:
            return True
    return False


def _parts(answer: Any) -> Sequence[Any]:
    """Return the answers inside the answer to several searches."""
    return answer.get("responses", ()) if isinstance(answer, dict) else ()


def _deed(action: str) -> str:
    """Return in plain words what an action of the server does, as far as its name tells."""
    match action.split("/"):
        case ["indices:data", "read", *_]:
            return "read records"
        case ["indices:data", "write", *_]:
            return "write records"
        case ["indices:admin", "create" | "auto_create"]:
            return "make indices"
        case ["indices:admin", "mappings" | "resolve", *_]:
            return "see indices"
        case ["indices:admin", "delete"]:
            return "delete indices"
        case [_, "index_template" | "component_template", verb]:
            return "see index templates" if verb == "get" else "change index templates"
        case ["cluster:monitor" | "indices:monitor", *_]:
            return "see how the cluster is"
    return "do this"


def reason_of(error: ApiError) -> tuple[str, str]:
    """Return the type and the reason of a refusal, the innermost where the outer one only says that all failed."""
    details = error.body.get("error") if isinstance(error.body, dict) else None
    if not isinstance(details, dict):  # not Elasticsearch's own: a proxy's page
        return f"HTTP {error.status_code}", error.message[:200]
    innermost = (details.get("root_cause") or [details.get("caused_by") or details])[0]
    return innermost["type"], str(innermost.get("reason") or innermost["type"]).rstrip(".;")


def _tls_failure(text: str, server: str) -> str:
    """Say why no safe connection could be made; `text` is OpenSSL's."""
    if "WRONG_VERSION_NUMBER" in text:
        return f"{server} does not speak TLS; write http:// in ELASTICSEARCH_URL."
    return distrusted(text, server, "ELASTICSEARCH_URL") or (
        f"{server} can't be reached over TLS ({text}); is elasticsearch_ca_certs the right PEM file?"
    )


def _with_port(url: str) -> str:
    """Return the URL with a port, which the client wants to see."""
    parts = urlsplit(url)
    if parts.port is not None:
        return url
    return parts._replace(netloc=f"{parts.netloc}:{_PORTS[parts.scheme]}").geturl()

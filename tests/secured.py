"""A server with security on: it speaks HTTPS, has the kit's roles in a file, a user of each, and an operator."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from elasticsearch import Elasticsearch

from tests import certificates
from verl_ingest.index import apply, client, roles
from verl_ingest.local import elasticsearch as local
from verl_ingest.settings import Settings

PASSWORD = "right-password"
OPERATOR = "operator"  # may do everything
NOBODY = "nobody"  # has no role
LATE = "late_admin"  # has a role that is not in the file yet


@dataclass(frozen=True)
class Secured:
    """Where it answers, the PEM file of who signed its certificate, its roles.yml. Users are called as their role."""

    url: str
    authority: Path
    roles: Path

    def settings(self, user: str, **other: object) -> Settings:
        login = {"elasticsearch_username": user, "elasticsearch_password": PASSWORD}
        return Settings(**{"elasticsearch_url": self.url, "elasticsearch_ca_certs": self.authority, **login, **other})

    def environment(self, user: str) -> dict[str, str]:
        names = {"URL": self.url, "CA_CERTS": str(self.authority), "USERNAME": user, "PASSWORD": PASSWORD}
        return {f"ELASTICSEARCH_{name}": value for name, value in names.items()}

    def client(self, user: str) -> Elasticsearch:
        return client.connect(self.settings(user))


@contextmanager
def running(version: str, folder: Path) -> Iterator[Secured]:
    """Run it while the block lasts; the folder gets the authority's PEM file."""
    authority, path = trustme.CA(), folder / "authority.pem"
    authority.cert_pem.write_to_path(path)
    users = [local.User(role, PASSWORD, (role,)) for role in roles.BODIES]
    users += [
        local.User(user, PASSWORD, own) for user, own in ((OPERATOR, ("superuser",)), (NOBODY, ()), (LATE, (LATE,)))
    ]
    with local.running(version, users=users, roles=roles.BODIES, tls=certificates.local(authority)) as server:
        file = Path(server.folder) / "elasticsearch" / "config" / "roles.yml"
        yield Secured(server.url.replace("127.0.0.1", "localhost"), path, file)


def apply_templates(server: Elasticsearch) -> None:
    """Bring the kit's templates, whatever another test has made of them."""
    apply.write(server, apply.compare(server, apply.wanted(Settings()), overwrite=True))

"""Throw-away certificate authorities."""

import trustme

from verl_ingest.local.elasticsearch import Tls


def local(authority: trustme.CA) -> Tls:
    """Return a certificate of this machine's own names."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    return Tls(
        certificate="".join(part.bytes().decode() for part in issued.cert_chain_pems),
        key=issued.private_key_pem.bytes().decode(),
        authority=authority.cert_pem.bytes().decode(),
    )

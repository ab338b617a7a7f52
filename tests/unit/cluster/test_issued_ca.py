"""The signing request of a job's CA, and the certificates that an issuer may return for it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509

from cpr_operator.cluster.certificates import new_authority
from cpr_operator.cluster.issued_ca import UnusableError, issued_certificate, signing_request
from support.issuer import LIFETIME, Issuer

UID = "0a1b2c3d-0000-4000-8000-000000000000"
NOW = float(int(time.time()))
AUTHORITY, ISSUER = new_authority(UID), Issuer()
REQUEST = signing_request(AUTHORITY, UID)


def test_request_names_the_job_and_a_ca() -> None:
    found = x509.load_pem_x509_csr(REQUEST.encode())
    assert found.is_signature_valid
    assert found.subject.rfc4514_string() == f"CN=CPRJob {UID}"
    assert found.public_key() == x509.load_pem_x509_certificate(AUTHORITY.certificate.encode()).public_key()
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = found.extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    # cert-manager refuses a request with other usages than in its spec: cert sign.
    assert (usage.critical, usage.value.key_cert_sign, usage.value.crl_sign) == (True, True, False)
    assert signing_request(AUTHORITY, UID) == REQUEST


def test_issued_certificate_is_apart_from_its_chain() -> None:
    signed = ISSUER.sign(REQUEST, NOW)
    found = issued_certificate(REQUEST, signed + ISSUER.intermediate, ISSUER.root + ISSUER.intermediate, NOW)
    assert (found.ca, found.chain) == (signed, ISSUER.intermediate + ISSUER.root)
    assert (found.not_before, found.not_after) == (NOW, NOW + LIFETIME.total_seconds())
    assert found.renew_at == NOW + timedelta(days=60).total_seconds()
    assert issued_certificate(REQUEST, signed, "", NOW).chain == ""


def test_shortest_certificate_is_renewed_hours_before_its_end() -> None:
    found = issued_certificate(REQUEST, ISSUER.sign(REQUEST, NOW, timedelta(days=1)), "", NOW)
    assert found.not_after - found.renew_at == timedelta(hours=8).total_seconds()


@pytest.mark.parametrize(
    ("lifetime", "changes", "message"),
    [
        (timedelta(hours=23), {}, "has to be valid for a day at least"),
        (LIFETIME, {"is_ca": False}, "it is no CA"),
        (LIFETIME, {"name": "another"}, "its name is CN=another"),
    ],
)
def test_certificate_that_cannot_be_the_ca_is_named(lifetime: timedelta, changes: dict[str, Any], message: str) -> None:
    former = ISSUER.sign(REQUEST, NOW)
    with pytest.raises(UnusableError, match=message):
        issued_certificate(REQUEST, ISSUER.sign(REQUEST, NOW, lifetime, **changes), "", NOW, former)


def test_certificate_of_another_key_or_none_is_named() -> None:
    other = ISSUER.sign(signing_request(new_authority(UID), UID), NOW)
    with pytest.raises(UnusableError, match="another key"):
        issued_certificate(REQUEST, other, "", NOW)
    with pytest.raises(UnusableError, match="no certificate in PEM"):
        issued_certificate(REQUEST, "", ISSUER.root, NOW)

"""Pages of an encrypted job's process, for probes, the operator, members and strangers."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from cpr_contract import env
from cpr_contract.file_uris import page_url
from cpr_contract.reports import SaveRef
from cpr_contract.roster import ROSTER_PAGE, certificate_name
from cpr_operator.cluster.certificates import KeyPair, client_context, new_identity
from cpr_trainer.runtime import StatusServer
from support.certificates import certificates_of, leaf, write_ca

JOB = "5f1e"
STATUS = SaveRef("key", 3, 300)


@dataclass
class Pages:
    """A server's pages, and the Secret's files."""

    url: str
    folder: Path
    operator: KeyPair

    @property
    def ca(self) -> KeyPair:
        return KeyPair((self.folder / env.CA_NAME).read_text(), (self.folder / env.CA_KEY_NAME).read_text())

    def status_codes(self, client: ssl.SSLContext) -> list[int]:
        """The answers to a probe, a scrape, a poll and a roster."""
        client.check_hostname = False  # the page is that of an address; the operator expects a name
        with httpx.Client(verify=client, trust_env=False, timeout=60.0) as http:
            answers = [http.get(f"{self.url}/{page}") for page in ("healthz", "metrics", "status")]
            return [each.status_code for each in (*answers, http.post(self.url + ROSTER_PAGE, content=b"roster"))]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    operator = write_ca(tmp_path / "ca")
    with StatusServer(
        "127.0.0.1",
        0,
        status=lambda: STATUS,
        healthy=lambda: True,
        ready=lambda: True,
        registry=CollectorRegistry(),
        receive=lambda _roster, _signature: True,
        certificates=certificates_of(tmp_path / "ca", JOB, "shard", 0),
    ) as server:
        yield Pages(page_url("127.0.0.1", server.port, "").replace("http:", "https:"), tmp_path / "ca", operator)


def test_operator_and_members_see_the_report(pages: Pages) -> None:
    member = leaf(pages.ca, certificate_name(JOB, "trainer", 0))
    for identity in (pages.operator, member):
        assert pages.status_codes(client_context(pages.ca.certificate, identity)) == [200, 200, 200, 204]


def test_probe_without_certificate_sees_health_and_metrics_alone(pages: Pages) -> None:
    assert pages.status_codes(ssl.create_default_context(cadata=pages.ca.certificate)) == [200, 200, 403, 403]


def test_certificate_of_another_job_or_operator_is_refused(pages: Pages, tmp_path: Path) -> None:
    write_ca(tmp_path / "other")
    other = KeyPair(*((tmp_path / "other" / name).read_text() for name in (env.CA_NAME, env.CA_KEY_NAME)))
    for identity in (leaf(other, certificate_name(JOB, "trainer", 0)), new_identity()):
        with pytest.raises(httpx.TransportError):
            pages.status_codes(client_context(pages.ca.certificate, identity))


def test_unencrypted_request_is_not_answered(pages: Pages) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(pages.url.replace("https:", "http:") + "/healthz", trust_env=False, timeout=60.0)

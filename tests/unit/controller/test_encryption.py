"""The CA of an encrypted job belongs to its key, from the start over suspensions, lost keys and other operators."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from cryptography import x509

from cpr_contract import env
from cpr_contract.choices import Encryption
from cpr_contract.roster import key_digest
from cpr_operator.api.status import Runtime
from cpr_operator.cluster.certificates import KeyPair, PodTLS, new_identity
from cpr_operator.cluster.protocol import RefusedError
from cpr_operator.cluster.views import PodView
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.prerequisites import CHECK_S
from cpr_operator.reconcile import Timing
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

TOTAL = 2_000_000
KEYS = itertools.count(1)
TLS: dict[str, Any] = {"security__encryption": "TLS"}
FORBIDDEN = "secrets is forbidden"


class RecordingCluster(SimulatedCluster):
    """Records connections by pod, the names of the receivers of rosters, and the number of connections without TLS."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.connections: dict[str, PodTLS] = {}
        self.rosters: list[str] = []
        self.unencrypted = 0

    async def fetch_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        self._note(pod, tls)
        return await super().fetch_report(pod, deadline_s, max_bytes, recorded, tls)

    async def send_roster(
        self, pod: PodView, roster: str, signature: str, deadline_s: float, tls: PodTLS | None = None
    ) -> None:
        self._note(pod, tls)
        self.rosters.append(tls.name if tls else "")
        await super().send_roster(pod, roster, signature, deadline_s, tls)

    def _note(self, pod: PodView, tls: PodTLS | None) -> None:
        if tls is None:
            self.unencrypted += 1
        else:
            self.connections[pod.name] = tls


class EncryptionHarness(ControllerHarness):
    """A job that trains for long, and an operator with an identity that a test may refuse or replace."""

    def __init__(self, encryption: Encryption = "None", **job: Any) -> None:
        self.recorded = RecordingCluster(TOTAL)
        super().__init__(spec(data__samples=TOTAL, **job), total=TOTAL, cluster=self.recorded)
        self.operator, self.refuses = new_identity(), False
        self.restart(encryption)

    def restart(self, encryption: Encryption = "None") -> None:
        """Another process of the operator."""
        self.controller = Controller(
            self.cluster,
            lambda: self.cluster.now,
            timing=Timing(running_s=15, changing_s=1, progress_s=15),
            new_key=lambda: f"key-{next(KEYS)}",
            encryption=encryption,
            identity=self.identity,
            rng=random.Random(1),
        )

    async def identity(self) -> KeyPair:
        if self.refuses:
            raise RefusedError(FORBIDDEN)
        return self.operator

    async def resume(self) -> None:
        self.cluster.set_spec("job", suspend=False)
        await self.go(30)
        assert self.status.phase == "Running"

    @property
    def runtime(self) -> Runtime:
        assert self.status.runtime is not None
        return self.status.runtime

    def check(self, *, encrypted: bool) -> None:
        """Assert that status, Secret and pods agree."""
        runtime = self.runtime
        secret = self.cluster.secrets[f"job-12345-key-{runtime.key_digest}"]["stringData"]
        assert key_digest(secret[env.KEY_NAME].encode()) == runtime.key_digest
        files = (secret.get(env.CA_NAME, ""), secret.get(env.OPERATOR_NAME, ""))
        assert files == ((runtime.ca, self.operator.certificate) if encrypted else ("", ""))
        assert (bool(runtime.ca), runtime.identity_digest) == (encrypted, self.operator.digest if encrypted else "")
        for pod in self.cluster.pods.values():
            if pod.phase == "Running":
                (main,) = pod.manifest["spec"]["containers"]
                values = {each["name"]: each.get("value") for each in main["env"]}
                assert values[env.KEY_DIGEST] == runtime.key_digest
                assert values.get(env.ENCRYPTION) == ("TLS" if encrypted else None)


async def test_job_starts_with_a_ca_of_its_own_and_is_polled_by_tls() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    assert harness.status.phase == "Running"
    harness.check(encrypted=True)
    job = harness.cluster.jobs["default", "job"]
    found = x509.load_pem_x509_certificate(harness.runtime.ca.encode())
    assert found.subject.rfc4514_string() == f"CN=CPRJob {job.uid}"
    assert (harness.recorded.unencrypted, {each.name for each in harness.recorded.connections.values()}) == (
        0,
        {f"{member.role}-{member.index}.{job.uid}" for member in harness.status.members},
    )


@pytest.mark.parametrize(
    ("default", "stated", "encrypted"), [("TLS", None, True), ("TLS", "None", False), ("None", None, False)]
)
async def test_default_is_the_operator_s(default: Encryption, stated: str | None, *, encrypted: bool) -> None:
    harness = EncryptionHarness(default, **({"security__encryption": stated} if stated else {}))
    await harness.go(10)
    assert harness.status.phase == "Running"
    harness.check(encrypted=encrypted)
    assert bool(harness.recorded.unencrypted) is not encrypted


async def test_change_takes_effect_when_the_job_resumes() -> None:
    harness = EncryptionHarness()
    await harness.go(10)
    started = harness.runtime
    harness.cluster.set_spec("job", security={"encryption": "TLS"})
    await harness.go(4)
    assert (harness.status.phase, harness.runtime) == ("Running", started)
    digests = [started.key_digest]
    for stated in ("TLS", "None", "TLS"):
        harness.cluster.set_spec("job", security={"encryption": stated}, suspend=True)
        await harness.go(30)
        assert harness.status.phase == "Suspended"
        await harness.resume()
        harness.check(encrypted=stated == "TLS")
        digests.append(harness.runtime.key_digest)
    assert len(set(digests)) == 4, "a key with a CA and one without are two"


async def test_resumed_job_keeps_its_ca() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.runtime
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(30)
    await harness.resume()
    assert (harness.runtime.ca, harness.runtime.key_digest) == (before.ca, before.key_digest)
    harness.check(encrypted=True)


async def test_key_that_is_lost_while_the_job_is_suspended_is_replaced_with_its_ca() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.runtime
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(30)
    harness.cluster.secrets.clear()
    harness.operator = new_identity()
    harness.restart()
    await harness.resume()
    assert harness.runtime.ca != before.ca
    harness.check(encrypted=True)


async def test_lost_key_is_replaced_with_its_ca() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.runtime
    harness.cluster.secrets.clear()
    harness.cluster.now += CHECK_S
    await harness.go(1)
    phases = [harness.status.phase]
    await harness.go(40)
    assert [*phases, harness.status.phase] == ["Suspending", "Running"]
    harness.check(encrypted=True)
    assert harness.runtime.ca != before.ca
    assert set(harness.status.ledger.ranges) == {()}


async def test_operator_that_starts_over_keeps_the_ca() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.runtime
    harness.restart()
    harness.cluster.kill("shard", 1)
    await harness.go(40)
    assert (harness.status.phase, harness.runtime, harness.status.restarts) == ("Running", before, 1)
    harness.check(encrypted=True)


async def test_operator_that_dies_before_the_secret_is_followed_by_one_with_another_ca() -> None:
    harness = EncryptionHarness(**TLS)

    def die(call: str, _number: int, when: str) -> None:
        if (call, when) == ("create_secret", "before"):
            raise KeyboardInterrupt

    harness.cluster.fault = die
    with pytest.raises(KeyboardInterrupt):
        await harness.go()
    lost = harness.runtime
    harness.cluster.fault = lambda *_: None
    harness.restart()
    await harness.go(14)
    assert harness.status.phase == "Running"
    harness.check(encrypted=True)
    assert harness.runtime.ca != lost.ca


async def test_other_identity_is_a_lost_key() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.runtime
    harness.operator = new_identity()
    harness.restart()
    await harness.go(1)
    assert (harness.status.phase, "key was lost" in harness.condition("Suspended")[2]) == ("Suspending", True)
    await harness.go(40)
    assert harness.status.phase == "Running"
    harness.check(encrypted=True)
    assert harness.runtime.ca != before.ca
    assert set(harness.status.ledger.ranges) == {()}


async def test_job_does_not_start_without_the_identity() -> None:
    harness = EncryptionHarness(**TLS)
    harness.refuses = True
    await harness.go(6)
    status, reason, message = harness.condition("PodsReady")
    assert (status, reason, FORBIDDEN in message) == ("False", "CreateRefused", True)
    assert (harness.cluster.pods, harness.cluster.secrets) == ({}, {})
    harness.refuses = False
    await harness.go(10)
    assert harness.status.phase == "Running"
    harness.check(encrypted=True)


async def test_unknown_identity_is_no_evidence() -> None:
    harness = EncryptionHarness(**TLS)
    await harness.go(10)
    before = harness.status
    harness.refuses = True
    harness.restart()
    harness.recorded.connections.clear()
    await harness.go(20)
    assert (harness.status.phase, harness.status.restarts) == ("Running", 0)
    assert (harness.status.shards, harness.runtime) == (before.shards, before.runtime)
    assert (harness.recorded.connections, harness.recorded.unencrypted) == ({}, 0)
    assert harness.condition("ReportsAvailable")[:2] == ("False", "NoAnswer")


async def test_spare_gets_its_roster_by_tls_under_the_name_of_a_spare() -> None:
    harness = EncryptionHarness(shards__spares=1, **TLS)
    await harness.go(20)
    (spare,) = harness.cluster.spares()
    harness.cluster.kill("shard", 1)
    await harness.go(20)
    job = harness.cluster.jobs["default", "job"]
    names = [f"{name}.{job.uid}" for name in ("spare-0", "trainer-0", "trainer-1")]
    assert (harness.recorded.rosters, harness.recorded.unencrypted) == (names, 0)
    assert harness.recorded.connections[spare.name].name == f"shard-1.{job.uid}"
    harness.check(encrypted=True)


async def test_identity_is_not_needed_without_encryption() -> None:
    harness = EncryptionHarness()
    harness.refuses = True
    await harness.go(10)
    assert harness.status.phase == "Running"
    harness.check(encrypted=False)

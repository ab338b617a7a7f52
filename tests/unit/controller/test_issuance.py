"""A CA signed by an issuer of cert-manager: its start, obstacles, renewals, and operators that take over."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.roster import key_digest
from cpr_operator.api.base import format_time
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.api.status import IssuedCA, Runtime
from cpr_operator.cluster.certificates import KeyPair, new_identity
from cpr_operator.cluster.protocol import Manifest, NotFoundError, RefusedError
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.prerequisites import CHECK_S
from cpr_operator.reconcile import Timing
from cpr_operator.reconcile.issuance import RETRY_S
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness
from support.issuer import Issuer, condition

TOTAL = 2_000_000
FIELD = "spec.security.certificates.issuerRef"
ISSUED: dict[str, Any] = {
    "security": {"encryption": "TLS", "certificates": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}}
}


class IssuingCluster(SimulatedCluster):
    """A cluster with a cert-manager that answers CertificateRequests when a test has it do so."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.refusal: Exception | None = None

    async def create(self, manifest: Manifest) -> None:
        if self.refusal is not None:
            raise self.refusal
        meta = {**manifest["metadata"], "creationTimestamp": format_time(self.now)}
        await super().create({**manifest, "metadata": meta})

    def requests(self) -> list[Manifest]:
        return [each for (kind, _, _), each in self.objects.items() if kind == "CertificateRequest"]

    def answer(self, request: Manifest, status: Mapping[str, Any]) -> None:
        self.applied.merge_status(request, status)


class IssuanceHarness(ControllerHarness):
    """A job with an issuer, and an operator that a test may replace."""

    def __init__(self, job: dict[str, Any] | None = None, issuer: IssuerRef | None = None) -> None:
        self.issuing, self.issuer, self.default = IssuingCluster(TOTAL), Issuer(), issuer
        document = {**spec(data__samples=TOTAL), **(ISSUED if job is None else job)}
        self.keys, self.operator = 0, new_identity()
        super().__init__(document, total=TOTAL, cluster=self.issuing)
        self.restart()

    def restart(self) -> None:
        """Another process of the operator, with other keys."""
        self.controller = Controller(
            self.cluster,
            lambda: self.cluster.now,
            timing=Timing(running_s=15, changing_s=1, progress_s=15),
            new_key=self.new_key,
            encryption="TLS" if self.default is not None else "None",
            issuer=self.default,
            identity=self.identity,
            rng=random.Random(1),
        )

    def new_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    async def identity(self) -> KeyPair:
        return self.operator

    def sign(self) -> None:
        """Sign the one request that waits."""
        (request,) = [each for each in self.issuing.requests() if not each["status"]]
        self.issuing.answer(request, self.issuer.answer(request, self.cluster.now - 60))

    async def start(self) -> None:
        await self.go(2)
        self.sign()
        await self.go(10)
        assert self.status.phase == "Running"

    @property
    def runtime(self) -> Runtime:
        assert self.status.runtime is not None
        return self.status.runtime

    @property
    def issued(self) -> IssuedCA:
        assert self.runtime.issued is not None
        return self.runtime.issued

    def annotations(self) -> set[str]:
        """The CA in the annotations of running pods."""
        pods = [pod for pod in self.cluster.pods.values() if pod.phase == "Running"]
        return {pod.meta["annotations"].get(env.ANNOTATION_ISSUED_CA, "") for pod in pods}


async def test_job_starts_once_the_issuer_has_signed() -> None:
    harness = IssuanceHarness()
    wake_s = await harness.go(2)
    (request,) = harness.issuing.requests()
    assert (harness.status.phase, harness.cluster.pods, harness.cluster.secrets) == ("Pending", {}, {})
    assert harness.status.certificate_request == request["metadata"]["name"]
    assert wake_s == 1.0
    status, reason, message = harness.condition("CertificateIssued")
    assert (status, reason, FIELD in message) == ("False", "Waiting", True)
    assert request["spec"]["issuerRef"] == {"name": "ca", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert request["metadata"]["ownerReferences"][0]["uid"] == harness.cluster.jobs["default", "job"].uid
    harness.sign()
    await harness.go(10)
    assert (harness.status.phase, harness.status.certificate_request) == ("Running", "")
    assert harness.condition("CertificateIssued")[:2] == ("True", "Issued")
    secret = harness.cluster.secrets[f"job-12345-key-{harness.runtime.key_digest}"]["stringData"]
    chain = harness.issuer.intermediate + harness.issuer.root
    assert (secret[env.CA_NAME], secret[env.CA_CHAIN_NAME]) == (harness.runtime.ca, chain)
    assert harness.annotations() == {harness.runtime.ca + chain}
    assert harness.issued.issuer == IssuerRef(name="ca", kind="ClusterIssuer")


async def test_job_waits_in_frequent_passes_at_first_and_rare_ones_later() -> None:
    harness = IssuanceHarness()
    assert await harness.go(2) == 1.0
    harness.cluster.now += 100
    assert await harness.go() == 15.0


async def test_default_issuer_is_the_operator_s() -> None:
    harness = IssuanceHarness({}, IssuerRef(name="default"))
    await harness.start()
    assert harness.issued.issuer == IssuerRef(name="default", kind="Issuer", group="cert-manager.io")


async def test_operator_that_takes_over_replaces_the_request_of_the_lost_key() -> None:
    harness = IssuanceHarness()
    await harness.go(2)
    (lost,) = harness.issuing.requests()
    harness.restart()
    await harness.go(2)
    (request,) = harness.issuing.requests()
    assert request["metadata"]["name"] != lost["metadata"]["name"]
    harness.sign()
    await harness.go(10)
    assert harness.status.phase == "Running"


async def test_operator_that_takes_over_while_the_job_trains_keeps_its_ca() -> None:
    harness = IssuanceHarness()
    await harness.start()
    before = harness.runtime
    harness.restart()
    harness.cluster.kill("shard", 1)
    await harness.go(40)
    assert (harness.status.phase, harness.runtime, harness.status.restarts) == ("Running", before, 1)
    assert harness.annotations() == {before.issued_ca}


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([condition("Denied", "Policy", "not you"), condition("Ready", "Denied", status="False")], "RequestDenied"),
        ([condition("InvalidRequest", "Bad", "not you")], "RequestInvalid"),
        ([condition("Ready", "Failed", "not you", "False")], "RequestFailed"),
        ([condition("Ready", "Issued", "not you")], "CertificateUnusable"),
        ([condition("Ready", "Pending", 'Referenced "Issuer" not found', "False")], "IssuerNotFound"),
    ],
)
async def test_obstacle_names_field_and_remedy(conditions: list[dict[str, str]], reason: str) -> None:
    harness = IssuanceHarness()
    await harness.go(2)
    (request,) = harness.issuing.requests()
    harness.issuing.answer(request, {"conditions": conditions})
    await harness.go(2)
    status, found, message = harness.condition("CertificateIssued")
    assert (status, found, FIELD in message, "correct" in message or "name an issuer" in message) == (
        "False",
        reason,
        True,
        True,
    )
    assert [each.reason for each in harness.cluster.events.values()] == ["CertificateNotIssued"]
    assert (harness.status.phase, harness.cluster.pods) == ("Pending", {})
    harness.cluster.now += RETRY_S
    await harness.go(2)
    (later,) = harness.issuing.requests()
    if reason == "IssuerNotFound":
        assert later["metadata"]["uid"] == request["metadata"]["uid"], "cert-manager signs it once the issuer exists"
        harness.issuing.answer(later, harness.issuer.answer(later, harness.cluster.now - 60))
    else:
        assert not later["status"], "it is a new one"
        harness.sign()
    await harness.go(10)
    assert harness.status.phase == "Running"


@pytest.mark.parametrize(
    ("refusal", "reason", "remedy"),
    [
        (NotFoundError("404 page not found"), "CertManagerMissing", "install cert-manager"),
        (RefusedError('it is forbidden: User "cprjob" cannot create it'), "RequestForbidden", "certManager.enabled"),
        (RefusedError('admission webhook "policy" denied the request'), "RequestRefused", "admission webhooks"),
    ],
)
async def test_missing_cert_manager_and_missing_rights_are_named(refusal: Exception, reason: str, remedy: str) -> None:
    harness = IssuanceHarness()
    harness.issuing.refusal = refusal
    wake_s = await harness.go(3)
    status, found, message = harness.condition("CertificateIssued")
    assert (status, found, FIELD in message, remedy in message) == ("False", reason, True, True)
    assert (wake_s, harness.cluster.pods) == (15.0, {})
    harness.issuing.refusal = None
    await harness.start()


async def test_renewal_reaches_all_pods_without_a_restart() -> None:
    """Another operator makes it, which does not have the key."""
    harness = IssuanceHarness()
    await harness.start()
    before, pods = harness.runtime, {pod.uid for pod in harness.cluster.pods.values()}
    harness.restart()
    harness.cluster.now = harness.issued.renew_at + 1
    await harness.go(2)
    assert harness.condition("CertificateIssued")[:2] == ("False", "Waiting")
    assert (harness.status.phase, harness.runtime) == ("Running", before)
    harness.sign()
    await harness.go(4)
    after = harness.runtime
    assert (after.key_digest, harness.issued.number, harness.issued.request) == (
        before.key_digest,
        2,
        before.issued.request if before.issued else "",
    )
    assert (after.ca != before.ca, harness.annotations()) == (True, {after.issued_ca})
    assert {pod.uid for pod in harness.cluster.pods.values()} == pods
    assert harness.condition("CertificateIssued")[:2] == ("True", "Issued")
    harness.cluster.kill("shard", 1)
    await harness.go(40)
    assert (harness.status.phase, harness.annotations()) == ("Running", {after.issued_ca})


async def test_resumed_job_keeps_its_ca_unless_the_issuer_changes_or_it_ends() -> None:
    harness = IssuanceHarness()
    await harness.start()
    before = harness.runtime
    for change, retained in (({}, True), ({"issuerRef": {"name": "other"}}, False)):
        harness.cluster.set_spec("job", suspend=True)
        await harness.go(30)
        assert harness.status.phase == "Suspended"
        security = {"encryption": "TLS", "certificates": change or ISSUED["security"]["certificates"]}
        harness.cluster.set_spec("job", suspend=False, security=security)
        await harness.go(3)
        if not retained:
            assert harness.status.phase == "Suspended"
            harness.sign()
        await harness.go(20)
        assert (harness.status.phase, harness.runtime.ca == before.ca) == ("Running", retained)
    assert harness.issued.issuer.name == "other"
    before = harness.runtime
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(30)
    harness.cluster.now = harness.issued.not_after + 1
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(3)
    harness.sign()
    await harness.go(20)
    assert (harness.status.phase, harness.runtime.key_digest != before.key_digest) == ("Running", True)


async def test_lost_key_is_replaced_with_another_ca_of_the_issuer() -> None:
    harness = IssuanceHarness()
    await harness.start()
    before = harness.runtime
    harness.cluster.secrets.clear()
    harness.cluster.now += CHECK_S
    await harness.go(40)
    assert harness.status.phase == "Suspended"
    harness.sign()
    await harness.go(20)
    assert (harness.status.phase, harness.issued.number) == ("Running", 1)
    assert harness.runtime.key_digest != before.key_digest
    assert set(harness.status.ledger.ranges) == {()}


async def test_operator_that_dies_before_the_secret_loses_no_job() -> None:
    harness = IssuanceHarness()
    await harness.go(2)
    harness.sign()

    def die(call: str, _number: int, when: str) -> None:
        if (call, when) == ("create_secret", "before"):
            raise KeyboardInterrupt

    harness.cluster.fault = die
    with pytest.raises(KeyboardInterrupt):
        await harness.go(2)
    lost = harness.runtime
    harness.cluster.fault = lambda *_: None
    harness.restart()
    await harness.go(20)
    harness.sign()
    await harness.go(20)
    assert harness.status.phase == "Running"
    assert harness.runtime.key_digest != lost.key_digest
    secret = harness.cluster.secrets[f"job-12345-key-{harness.runtime.key_digest}"]["stringData"]
    assert key_digest(secret[env.KEY_NAME].encode()) == harness.runtime.key_digest
    assert secret[env.CA_NAME] == harness.runtime.ca


async def test_job_that_is_suspended_before_its_start_requests_nothing() -> None:
    harness = IssuanceHarness()
    await harness.go(2)
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(3)
    assert (harness.issuing.requests(), harness.status.certificate_request) == ([], "")
    assert harness.condition("CertificateIssued")[:2] == ("False", "NotRequested")

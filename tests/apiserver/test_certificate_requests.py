"""CertificateRequests on an API server with cert-manager's resource definition, and with the rights of the chart.

An issuer of the tests signs them, by the API of cert-manager.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cpr_contract import env
from cpr_operator.api.status import Status
from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.protocol import RefusedError
from cpr_operator.controller.controller import Controller
from simulation.control_plane.workload import spec
from support.api_jobs import CORE, JOBS, job, pods
from support.apiserver import ApiServer as RunningApiServer
from support.apiserver import binary, install_crd, write_kubeconfig
from support.chart import of_kind, render
from support.issuer import Issuer

REQUESTS = "/apis/cert-manager.io/v1/namespaces/default/certificaterequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAME, OWN_ROLE = "issued", "operators-cprjob"
#: A user of conftest, which stands for the account of the operator: no kubelet hands out its token.
OPERATOR = "operator"
#: The most seconds that the rights or the kind of a step take to arrive.
WITHIN_S = 60.0


@pytest.fixture
async def cluster(server: RunningApiServer, tmp_path: Path) -> AsyncIterator[KubernetesCluster]:
    """The API server as an operator with the rights of `grant` alone sees it."""
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", server.url, server.ca_file, OPERATOR)
    made = KubernetesCluster(ApiServer(await load_configuration(kubeconfig)), time.time)
    yield made
    await made.close()


def grant(api: httpx.Client, *values: str) -> None:
    """Grant the rights that the chart with these values gives in each namespace."""
    (own,) = [each for each in of_kind(render(*values), "ClusterRole") if each["metadata"]["name"] == OWN_ROLE]
    role = {**own, "metadata": {"name": "issuance"}}
    group = "rbac.authorization.k8s.io"
    user = {"kind": "User", "name": OPERATOR, "apiGroup": group}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "issuance"}
    binding = {"metadata": {"name": "issuance"}, "subjects": [user], "roleRef": reference}
    for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        answer = api.put(f"{RBAC}/{plural}/issuance", json=body)  # the first one creates it
        assert answer.is_success, answer.text


def create_job(api: httpx.Client, described: dict[str, Any]) -> None:
    document = {"apiVersion": "cprjob.io/v1alpha1", "kind": "CPRJob", "metadata": {"name": NAME}, "spec": described}
    assert api.post(JOBS, json=document).status_code == httpx.codes.CREATED


def items(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(path).json()["items"]
    return found


def sign(api: httpx.Client, issuer: Issuer, request: dict[str, Any], begin: float) -> None:
    path = f"{REQUESTS}/{request['metadata']['name']}/status"
    answer = api.put(path, json=request | {"status": issuer.answer(request, begin)})
    assert answer.status_code == httpx.codes.OK, answer.text


async def passes(controller: Controller, api: httpx.Client, *expected: str) -> Status:
    """Run passes until the condition CertificateIssued has this status and reason: rights take effect a little later.

    Returns the status of the job.
    """
    status = Status()
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while True:
                with suppress(RefusedError):
                    await controller.run_pass("default", NAME)
                status = Status.model_validate(job(api, NAME).get("status", {}))
                found = {(one.status, one.reason) for one in status.conditions if one.type == "CertificateIssued"}
                if expected in found:
                    return status
                await asyncio.sleep(0.05)
    pytest.fail(f"CertificateIssued is not {expected}: {status.conditions}")


async def existing(controller: Controller, api: httpx.Client, count: int) -> list[dict[str, Any]]:
    """Run passes until there are as many CertificateRequests; return them."""
    found = items(api, REQUESTS)
    deadline = time.monotonic() + WITHIN_S
    while len(found) != count and time.monotonic() < deadline:
        await controller.run_pass("default", NAME)
        found = items(api, REQUESTS)
    assert len(found) == count
    return found


async def test_job_gets_and_renews_its_ca_with_the_rights_of_the_chart(
    api: httpx.Client, cluster: KubernetesCluster
) -> None:
    now, issuer = [time.time()], Issuer()
    controller = Controller(cluster, lambda: now[0])
    security = {"encryption": "TLS", "certificates": {"issuerRef": {"name": "ca"}}}
    create_job(api, {**spec(), "security": security})
    grant(api)
    await passes(controller, api, "False", "RequestForbidden")
    grant(api, "certManager.enabled=true")
    await passes(controller, api, "False", "CertManagerMissing")
    definition = binary("cert-manager-crds") / "cert-manager.io_certificaterequests.yaml"
    install_crd(api, yaml.safe_load(definition.read_text("utf-8")))
    await passes(controller, api, "False", "Waiting")
    (request,) = await existing(controller, api, 1)
    assert (request["spec"]["isCA"], request["spec"]["issuerRef"]["kind"]) == (True, "Issuer")
    assert request["metadata"]["ownerReferences"][0]["uid"] == job(api, NAME)["metadata"]["uid"]
    own = {key: value for key, value in request["metadata"].items() if key != "resourceVersion"}
    await cluster.create({**request, "metadata": own})  # success, because it exists

    sign(api, issuer, request, now[0] - 60)
    first = await passes(controller, api, "True", "Issued")
    assert (first.phase, len(pods(api, NAME))) == ("Starting", len(first.members))
    assert first.runtime is not None
    assert first.runtime.issued is not None
    files = {env.CA_NAME, env.CA_CHAIN_NAME, env.CA_KEY_NAME, env.KEY_NAME, env.OPERATOR_NAME}
    secrets = {each["metadata"]["name"]: each["data"].keys() for each in items(api, f"{CORE}/secrets")}
    assert [each for name, each in secrets.items() if name.endswith(first.runtime.key_digest)] == [files]

    now[0] = first.runtime.issued.renew_at + 1
    controller = Controller(cluster, lambda: now[0])  # another operator, which does not have the key
    requests = await existing(controller, api, 2)
    (request,) = [each for each in requests if each["metadata"]["name"] != request["metadata"]["name"]]
    sign(api, issuer, request, now[0] - 60)
    second = await passes(controller, api, "True", "Issued")
    assert second.runtime is not None
    assert (second.runtime.ca != first.runtime.ca, second.runtime.key_digest) == (True, first.runtime.key_digest)
    await controller.run_pass("default", NAME)
    found = (each["metadata"].get("annotations", {}) for each in items(api, f"{CORE}/pods"))
    texts = {each.get(env.ANNOTATION_ISSUED_CA) for each in found}
    assert second.runtime.issued_ca in texts
    assert first.runtime.issued_ca not in texts

    await cluster.delete("CertificateRequest", "default", request["metadata"]["name"])
    assert await cluster.read("CertificateRequest", "default", request["metadata"]["name"]) is None

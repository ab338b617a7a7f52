"""The operator's identity in its Secret, with the rights that the chart grants and no others."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.identity import OperatorIdentity, from_secret
from cpr_operator.cluster.protocol import RefusedError
from support.apiserver import ApiServer as RunningApiServer
from support.chart import of_kind, render

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/operators"
SECRETS = "/api/v1/namespaces/operators/secrets"


@pytest.fixture
def namespace(api: httpx.Client) -> str:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "operators"}}
    assert api.post("/api/v1/namespaces", json=body).status_code in {httpx.codes.CREATED, httpx.codes.CONFLICT}
    return "operators"


def grant(api: httpx.Client) -> None:
    """Create the Role of the chart for the identity."""
    for kind, path in (("Role", "roles"), ("RoleBinding", "rolebindings")):
        (each,) = [each for each in of_kind(render(), kind) if each["metadata"]["name"] == "cprjob-identity"]
        assert api.post(f"{RBAC}/{path}", json=each).status_code == httpx.codes.CREATED


def parts_of(api: httpx.Client) -> tuple[str, list[str]]:
    """The type of the Secret, and the names in it."""
    stored = api.get(f"{SECRETS}/cprjob-identity").json()
    return stored["type"], sorted(stored["data"])


async def test_two_replicas_have_one_identity_and_read_no_other_secret(
    server: RunningApiServer, api: httpx.Client, namespace: str
) -> None:
    configuration = await load_configuration(server.kubeconfig)
    replicas = [ApiServer(configuration) for _ in range(2)]
    for replica in replicas:
        replica._client.default_headers["Impersonate-User"] = f"system:serviceaccount:{namespace}:cprjob"

    def identities() -> list[OperatorIdentity]:
        loads = [from_secret(replica, namespace, "cprjob-identity") for replica in replicas]
        return [OperatorIdentity(load, time.monotonic) for load in loads]

    with pytest.raises(RefusedError, match="forbidden"):
        await identities()[0].get()
    grant(api)
    first, second = await asyncio.gather(*(each.get() for each in identities()))
    assert first == second == await identities()[0].get()
    assert parts_of(api) == ("kubernetes.io/tls", ["tls.crt", "tls.key"])
    for refused in (f"{SECRETS}/other", SECRETS):
        with pytest.raises(RefusedError):
            await replicas[0].get(refused)
    for replica in replicas:
        await replica.close()

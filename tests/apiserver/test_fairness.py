"""The operator's requests have their priority levels at the API server (API Priority and Fairness)."""

from __future__ import annotations

import time

import httpx

from support.apiserver import READY_S
from support.chart import of_kind, render

SCHEMAS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
UID = "X-Kubernetes-PF-FlowSchema-UID"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/operators/leases"


def schema_of(api: httpx.Client, path: str, account: str = "operators:cprjob") -> str:
    """The uid of the FlowSchema by which the API server takes a ServiceAccount's request."""
    user = {"Impersonate-User": f"system:serviceaccount:{account}"}
    return api.get(path, headers=user).headers[UID]


def test_requests_for_the_lease_have_a_level_of_their_own(api: httpx.Client) -> None:
    (schema,) = of_kind(render(), "FlowSchema")
    answer = api.post(SCHEMAS, json=schema)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    own = answer.json()["metadata"]["uid"]
    deadline = time.monotonic() + READY_S
    while schema_of(api, f"{LEASES}/cprjob") != own:
        assert time.monotonic() < deadline, "the FlowSchema takes no request"
        time.sleep(0.1)
    assert schema_of(api, f"{LEASES}/cprjob", "operators:other") != own
    assert schema_of(api, f"{LEASES}/cprjob".replace("operators", "others")) != own
    assert schema_of(api, "/api/v1/namespaces/operators/pods") != own

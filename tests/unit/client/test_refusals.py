from __future__ import annotations

import json

import pytest

from cpr_operator.client.connection import refusal

WEBHOOK = 'admission webhook "images.example.com" denied the request: unsigned'


def status(message: str) -> str:
    return json.dumps({"kind": "Status", "message": message})


@pytest.mark.parametrize(
    ("code", "body", "wanted"),
    [
        (404, "404 page not found\n", "the cluster knows no CPRJobs; install the operator: helm install"),
        (404, status('namespaces "a" not found'), 'namespaces "a" not found; name another namespace'),
        (401, status("Unauthorized"), "Unauthorized; renew the credentials"),
        (403, status("cprjobs is forbidden"), "cprjobs is forbidden; ask for the role edit"),
        (403, status(WEBHOOK), f"{WEBHOOK}; correct the job"),
        (409, status("exists"), "exists; give another name, or delete"),
        (422, status("spec.image: too long"), "spec.image: too long; correct the job"),
        (503, "<html>", "HTTP 503; try again"),
        (500, "[]", "HTTP 500; try again"),
    ],
)
def test_a_refusal_says_what_to_do(code: int, body: str, wanted: str) -> None:
    assert refusal(code, body).startswith(wanted)

from __future__ import annotations

import json

import pytest

from cpr_operator.cluster.api_server import error_of
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    TerminatingError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (404, "NotFound", NotFoundError),
        (409, "AlreadyExists", AlreadyExistsError),
        (409, "Conflict", ConflictError),
        (409, "", ConflictError),
        (400, "BadRequest", RefusedError),
        (403, "Forbidden", RefusedError),
        (422, "Invalid", RefusedError),
        (401, "Unauthorized", UnavailableError),
        (408, "", UnavailableError),
        (410, "Expired", UnavailableError),
        (429, "TooManyRequests", UnavailableError),
        (500, "InternalError", UnavailableError),
        (503, "ServiceUnavailable", UnavailableError),
        (504, "Timeout", UnavailableError),
    ],
)
def test_each_answer_is_an_error_of_the_tree(code: int, reason: str, error: type[ClusterError]) -> None:
    found = error_of(code, json.dumps({"reason": reason, "message": "exceeded quota: gpus"}).encode())
    assert type(found) is error
    assert str(found) == "exceeded quota: gpus"


def test_a_namespace_that_goes_is_told_by_its_cause() -> None:
    cause = {"reason": "NamespaceTerminating", "message": "namespace x is being terminated"}
    answer = {"reason": "Forbidden", "message": "unable to create new content", "details": {"causes": [cause]}}
    assert type(error_of(403, json.dumps(answer).encode())) is TerminatingError


@pytest.mark.parametrize("body", [b"<html>bad gateway", b"", b"[]", b"\xff"])
def test_what_is_no_status_object_is_shown(body: bytes) -> None:
    found = error_of(502, body)
    assert type(found) is UnavailableError
    assert "502" in str(found)

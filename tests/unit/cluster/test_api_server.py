from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from kubernetes.aio import client

from cpr_operator.cluster.api_server import ApiServer, environment_proxy, error_of
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    TerminatingError,
    UnavailableError,
)
from cpr_operator.election import NotLeadingError, Term


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


def test_terminating_namespace_is_recognised_by_its_cause() -> None:
    cause = {"reason": "NamespaceTerminating", "message": "namespace x is being terminated"}
    answer = {"reason": "Forbidden", "message": "unable to create new content", "details": {"causes": [cause]}}
    assert type(error_of(403, json.dumps(answer).encode())) is TerminatingError


@pytest.mark.parametrize("body", [b"<html>bad gateway", b"", b"[]", b"\xff"])
def test_answer_without_a_status_object_is_shown(body: bytes) -> None:
    found = error_of(502, body)
    assert type(found) is UnavailableError
    assert "502" in str(found)


@pytest.mark.parametrize(
    "write",
    [
        lambda server: server.create("/x", {}),
        lambda server: server.replace("/x", {}),
        lambda server: server.merge("/x", {}),
        lambda server: server.apply("/x", {}, "m"),
        lambda server: server.delete("/x", {}),
    ],
)
async def test_nothing_is_written_after_the_term_and_everything_can_be_read(
    write: Callable[[ApiServer], Awaitable[object]],
) -> None:
    now = 0.0
    term = Term(lambda: now, until=6.0)
    server = ApiServer(client.Configuration(host="http://127.0.0.1:9"), term.check)  # no server listens there
    try:
        with pytest.raises(UnavailableError, match="does not answer"):
            await write(server)
        now = 6.0
        with pytest.raises(NotLeadingError):
            await write(server)
        with pytest.raises(UnavailableError, match="does not answer"):
            await server.get("/x")
    finally:
        await server.close()


PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTP_PROXY": PROXY}, None),
        ({"HTTP_PROXY": "http://plain.example:3128", "HTTPS_PROXY": PROXY}, PROXY),
        *(({"HTTPS_PROXY": PROXY, "NO_PROXY": excepted}, None) for excepted in ("10.96.0.1", "10.96.0.1:443", "*")),
    ],
)
def test_the_proxy_for_the_scheme_of_the_server_is_taken(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy("https://10.96.0.1:443") == proxy

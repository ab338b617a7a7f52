"""A connection to S3 with the answers of a test."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import urllib3
from minio.credentials.providers import StaticProvider

from cpr_contract.spec import EndpointSpec
from cpr_trainer.store.connection import Connection, Upload

ENDPOINT = "http://store:9000"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that was sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class ScriptedHttp:
    """Replaces a pool of connections: gives the next answer for each request, and keeps the requests."""

    answers: list[urllib3.HTTPResponse]
    sent: list[Sent] = field(default_factory=list)

    def urlopen(self, method: str, url: str, body: Any, headers: Mapping[str, str], **_: Any) -> urllib3.HTTPResponse:
        data = b"".join(body) if isinstance(body, Upload) else body or b""
        self.sent.append(Sent(method, url, headers, data))
        return self.answers.pop(0)


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> urllib3.HTTPResponse:
    """An answer, before its body is read."""
    return urllib3.HTTPResponse(
        io.BytesIO(body), status=status, headers=headers or {}, preload_content=False, enforce_content_length=True
    )


def scripted(*answers: urllib3.HTTPResponse, region: str | None = "us-east-1") -> tuple[Connection, ScriptedHttp]:
    """A connection that gets these answers, and what it sends."""
    http = ScriptedHttp(list(answers))
    credentials = StaticProvider("key", "secret")
    return Connection(EndpointSpec(ENDPOINT, region), http, credentials, "snapshots.store"), http  # type: ignore[arg-type]

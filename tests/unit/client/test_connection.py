"""Pods and their logs over a real connection, to a server in the place of the API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from cpr_operator.client import ClientError
from cpr_operator.client.client import Member, Span, follow_log
from cpr_operator.client.kube_connection import KubeConnection, refusal

LABELS = {"cprjob.io/job": "job", "cprjob.io/role": "shard", "cprjob.io/index": "1"}
POD = {
    "metadata": {"name": "pod-1", "uid": "1", "labels": LABELS | {"cprjob.io/incarnation": "1"}},
    "status": {"phase": "Running"},
}


class Server(ThreadingHTTPServer):
    """One job with one pod, which prints its second line when `released` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.released = threading.Event()
        self.queries: list[dict[str, str]] = []
        self.cuts = False


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        self.server.queries.append({key: value for key, (value,) in query.items()})
        match path.split("/")[-1]:
            case "pods":
                self._answer({"items": [POD]})
            case "job":
                phase = "Succeeded" if self.server.released.is_set() else "Running"
                self._answer({"spec": {}, "status": {"phase": phase}})
            case "log":
                self._print()

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _print(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(b"first\nsec")
        assert self.server.released.wait()
        if self.server.cuts:
            self.close_connection = True
            return
        self._chunk(b"ond\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def connection(server: Server, tmp_path: Path) -> Iterator[KubeConnection]:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "other",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [
            {"name": "other", "context": {"cluster": "here", "user": "me"}},
            {"name": "mine", "context": {"cluster": "here", "user": "me", "namespace": "team"}},
        ],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config), "utf-8")
    connection = KubeConnection(str(tmp_path / "config"), "mine")
    yield connection
    connection.close()


def test_followed_line_arrives_when_it_is_printed(server: Server, connection: KubeConnection) -> None:
    assert connection.namespace == "team", "that of the context"
    lines = follow_log(connection, Member(connection.namespace, "job", "shard", 1), Span())
    assert next(lines) == "first\n"
    assert not server.released.is_set()
    server.released.set()
    assert list(lines) == ["second\n"]
    selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
    assert {"labelSelector": selector} in server.queries
    assert {"container": "main", "follow": "true", "timestamps": "false"} in server.queries


def test_broken_connection_raises_client_error(server: Server, connection: KubeConnection) -> None:
    server.cuts = True
    lines = follow_log(connection, Member("team", "job", "shard", 1), Span())
    assert next(lines) == "first\n"
    server.released.set()
    with pytest.raises(ClientError, match="cannot read the log of team/pod-1: the API server does not answer"):
        list(lines)


def test_missing_kubeconfig_raises_client_error(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="name a kubeconfig by the option"):
        KubeConnection(str(tmp_path / "none"))


WEBHOOK = 'admission webhook "images.example.com" denied the request: unsigned'


def status(message: str) -> str:
    return json.dumps({"kind": "Status", "message": message})


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (404, "404 page not found\n", "the cluster has no resource CPRJob; install the operator: helm install"),
        (404, status('namespaces "a" not found'), 'namespaces "a" not found; name another namespace'),
        (401, status("Unauthorized"), "Unauthorized; renew the credentials"),
        (403, status("cprjobs is forbidden"), "cprjobs is forbidden; request the role edit"),
        (403, status(WEBHOOK), f"{WEBHOOK}; correct the job"),
        (409, status("exists"), "exists; give another name, or delete"),
        (422, status("spec.image: too long"), "spec.image: too long; correct the job"),
        (503, "<html>", "HTTP 503; try again"),
        (500, "[]", "HTTP 500; try again"),
    ],
)
def test_refusal_has_a_remedy(code: int, body: str, expected: str) -> None:
    assert refusal(code, body).startswith(expected)

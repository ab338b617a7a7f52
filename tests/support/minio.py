"""A real MinIO server on this machine, for tests marked `store`."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
from minio import Minio

ACCESS_KEY = "cprjob-test"
SECRET_KEY = "cprjob-test-secret"  # noqa: S105 -- of a server that lives as long as a test
_START_S = 30.0


@dataclass(frozen=True)
class MinioServer:
    """A running server: `endpoint` is http://127.0.0.1:port."""

    endpoint: str
    credentials_dir: Path

    def client(self) -> Minio:
        """The administrator's client, for what a test arranges behind the product's back."""
        return Minio(self.endpoint.removeprefix("http://"), access_key=ACCESS_KEY, secret_key=SECRET_KEY, secure=False)


def minio_binary() -> Path:
    """The server's binary; without one the test is skipped, or fails where cluster tests are required."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "cprjob" / "bin" / "minio"
    if not binary.is_file():
        complaint = f"no MinIO server at {binary}: `make cluster-up` builds it"
        if os.environ.get("CPR_CLUSTER_TESTS") == "required":
            pytest.fail(complaint)
        pytest.skip(complaint)
    return binary


@contextmanager
def running_minio(folder: Path) -> Iterator[MinioServer]:
    """Start a server on a free port with its data below `folder`; end it by its process id."""
    binary = minio_binary()
    port = free_port()
    write_credentials(folder / "credentials", ACCESS_KEY, SECRET_KEY)
    log = (folder / "minio.log").open("wb")
    process = subprocess.Popen(
        [binary, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "data")],
        env={
            "HOME": str(folder),
            "MINIO_ROOT_USER": ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": SECRET_KEY,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        server = MinioServer(f"http://127.0.0.1:{port}", folder / "credentials")
        _wait_live(server.endpoint, process, folder / "minio.log")
        yield server
    finally:
        process.kill()
        process.wait()
        log.close()


def write_credentials(folder: Path, access_key: str, secret_key: str) -> Path:
    """Lay down credentials as a mounted Secret would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accessKey").write_text(access_key + "\n")
    (folder / "secretKey").write_text(secret_key + "\n")
    return folder


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_live(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    with urllib3.PoolManager(retries=False) as http:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if http.request("GET", f"{endpoint}/minio/health/live", timeout=1.0).status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            time.sleep(0.1)
    pytest.fail(f"MinIO did not start:\n{log.read_text(errors='replace')[-2000:]}")

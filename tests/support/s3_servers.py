"""S3 servers on this machine: moto, which needs Python alone; MinIO and versitygw, plain or with TLS."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import minio.error
import pytest
import urllib3
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider

from cpr_contract.spec import StoreSpec
from cpr_operator.cluster.local.pod_folder import PortBlocks
from support.apiserver import binary

ACCESS_KEY = "cprjob-test"
SECRET_KEY = "cprjob-test-secret"  # noqa: S105 -- of a server for one test
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server: `endpoint` is http[s]://127.0.0.1:port, `ca_file` the authority that vouches for it."""

    endpoint: str
    credentials_dir: Path
    ca_file: Path | None
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    @property
    def address(self) -> str:
        """127.0.0.1:port."""
        return self.endpoint.partition("://")[2]

    def client(self) -> Minio:
        """The administrator's client, for what a test arranges behind the product's back."""
        http = urllib3.PoolManager(retries=False, timeout=60.0, ca_certs=self.ca_file and str(self.ca_file))
        secure = self.endpoint.startswith("https:")
        return Minio(self.address, self.access_key, self.secret_key, secure=secure, region=REGION, http_client=http)

    def new_bucket(self, prefix: str = "") -> StoreSpec:
        """An empty store in a bucket of its own."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.client().make_bucket(name)
        return StoreSpec(self.endpoint, None, name, prefix)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A server's certificate for 127.0.0.1 with its key, and the authority that signed it."""

    ca_file: Path
    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Make an authority, and a server certificate signed by it, to be thrown away. Needs openssl."""
    openssl: list[str | Path] = [binary("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made = Certificate(folder / "ca.crt", folder / "public.crt", folder / "private.key")
    ca_key = folder / "ca.key"
    authority: list[str | Path] = ["-subj", "/CN=throw-away authority", "-keyout", ca_key, "-out", made.ca_file]
    server: list[str | Path] = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    server += ["-CA", made.ca_file, "-CAkey", ca_key]
    subprocess.run([*openssl, *authority], check=True, capture_output=True)
    subprocess.run([*openssl, *server, "-keyout", made.key, "-out", made.certificate], check=True, capture_output=True)
    return made


@contextlib.contextmanager
def running_minio(folder: Path, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Start MinIO on a free port with its data in folder/data; a certificate lies in a folder of its own."""
    certificates = ["--certs-dir", str(certificate.key.parent)] if certificate else []
    command = [str(binary("minio")), "server", "--quiet", *certificates, str(folder / "data")]
    environment = {
        "HOME": str(folder),
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    with free_port() as port:
        variables = environment | {"MINIO_ADDRESS": f"127.0.0.1:{port}"}
        with running_server(command, variables, folder, port, certificate) as server:
            yield server


@contextlib.contextmanager
def running_versitygw(folder: Path, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Start versitygw on a free port with its data in folder/data."""
    (folder / "data").mkdir(exist_ok=True)
    tls = ["--cert", str(certificate.certificate), "--key", str(certificate.key)] if certificate else []
    command = [str(binary("versitygw")), "--quiet", "--region", REGION, *tls, "posix", str(folder / "data")]
    environment = {"HOME": str(folder), "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with free_port() as port:
        variables = environment | {"VGW_PORT": f"127.0.0.1:{port}"}
        with running_server(command, variables, folder, port, certificate) as server:
            yield server


@contextlib.contextmanager
def running_moto(folder: Path) -> Iterator[S3Server]:
    """Start moto, which is written in Python and keeps objects in memory, on a free port."""
    with free_port() as port:
        command = [sys.executable, "-m", "moto.server", "--port", str(port)]
        with running_server(command, {"HOME": str(folder)}, folder, port) as server:
            yield server


#: A running server by its name, with "+tls" or without.
ServerOf = Callable[[str], S3Server]

#: Compiled servers by name.
SERVERS: Mapping[str, Callable[..., contextlib.AbstractContextManager[S3Server]]] = {
    "minio": running_minio,
    "versitygw": running_versitygw,
}


@contextlib.contextmanager
def servers_on_demand(new_folder: Callable[[str], Path]) -> Iterator[ServerOf]:
    """Start each of SERVERS, plain or with TLS, when it is first asked for."""
    running: dict[str, S3Server] = {}
    with contextlib.ExitStack() as stack:

        def server_of(kind: str) -> S3Server:
            if kind not in running:
                name, _, tls = kind.partition("+")
                certificate = make_certificate(new_folder("certificates")) if tls else None
                running[kind] = stack.enter_context(SERVERS[name](new_folder(name), certificate))
            return running[kind]

        yield server_of


def write_credentials(folder: Path, access_key: str, secret_key: str) -> Path:
    """Lay down credentials as a folder that is not a mounted Secret would hold them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accessKey").write_text(access_key + "\n")
    (folder / "secretKey").write_text(secret_key + "\n")
    return folder


@contextlib.contextmanager
def user(server: S3Server, policy: str = "readwrite") -> Iterator[tuple[str, str]]:
    """A user of MinIO's own, and its secret."""
    name, secret = f"user-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    admin = administrator(server)
    admin.user_add(name, secret)
    admin.attach_policy([policy], user=name)
    yield name, secret


def administrator(server: S3Server) -> MinioAdmin:
    """The client for MinIO's users."""
    return MinioAdmin(
        endpoint=server.address, credentials=StaticProvider(ACCESS_KEY, SECRET_KEY), region=REGION, secure=False
    )


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port of the loopback that no other test gets meanwhile, and no outgoing connection takes."""
    with contextlib.closing(PortBlocks(random.Random())) as ports:
        yield ports.take()


@contextlib.contextmanager
def running_server(  # noqa: PLR0913, PLR0917 -- a process, and how it is reached
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    port: int,
    certificate: Certificate | None = None,
    keys: tuple[str, str] = (ACCESS_KEY, SECRET_KEY),
) -> Iterator[S3Server]:
    """Run a server until the context ends; it is ended by its process id."""
    credentials = write_credentials(folder / "credentials", *keys)
    scheme, ca_file = ("https", certificate.ca_file) if certificate else ("http", None)
    server = S3Server(f"{scheme}://127.0.0.1:{port}", credentials, ca_file, *keys)
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_live(server, process, log)
            yield server
        finally:
            process.kill()


def _wait_live(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client = server.client()
    while process.poll() is None:
        try:
            client.list_buckets()
        except (urllib3.exceptions.HTTPError, minio.error.MinioException):
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")

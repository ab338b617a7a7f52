"""S3 servers that users are on their way to, and gateways: `tests/cluster/binaries.sh` installs them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from support.apiserver import binary
from support.s3_servers import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    S3Server,
    free_port,
    running_minio,
    running_moto,
    running_server,
    running_versitygw,
)

#: The keys of s3rver, which it has no option for.
_S3RVER = ("S3RVER", "S3RVER")
#: Keys in Garage's form.
_GARAGE = (f"GK{'0' * 24}", "0" * 64)


@contextlib.contextmanager
def running_rclone(folder: Path) -> Iterator[S3Server]:
    """Start `rclone serve s3` on files in folder/data."""
    (folder / "data").mkdir()
    with free_port() as port:
        command = [str(binary("rclone")), "serve", "s3", "--addr", f"127.0.0.1:{port}"]
        command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--force-path-style=true", str(folder / "data")]
        environment = {"HOME": str(folder), "RCLONE_CONFIG": str(folder / "rclone.conf")}
        with running_server(command, environment, folder, port) as server:
            yield server


@contextlib.contextmanager
def running_s3proxy(folder: Path, *, ignores_headers: bool = False) -> Iterator[S3Server]:
    """Start S3Proxy on files in folder/data."""
    (folder / "data").mkdir()
    with free_port() as port:
        options = {
            "s3proxy.endpoint": f"http://127.0.0.1:{port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "s3proxy.ignore-unknown-headers": str(ignores_headers).lower(),
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(folder / "data"),
        }
        (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        command = ["java", "-cp", f"{binary('s3proxy')}/*", "org.gaul.s3proxy.Main"]
        command += ["--properties", str(folder / "s3proxy.conf")]
        with running_server(command, _java(folder), folder, port) as server:
            yield server


@contextlib.contextmanager
def running_s3mock(folder: Path) -> Iterator[S3Server]:
    """Start Adobe's S3Mock; its other port uses TLS."""
    with free_port() as port, free_port() as tls_port:
        command = ["java", "-jar", str(binary("s3mock")), f"--http.port={port}", f"--server.port={tls_port}"]
        command.append("--server.address=127.0.0.1")
        with running_server(command, _java(folder), folder, port) as server:
            yield server


@contextlib.contextmanager
def running_localstack(folder: Path) -> Iterator[S3Server]:
    """Start LocalStack with its S3 alone."""
    with free_port() as port:
        command = [str(binary("localstack") / "bin" / "python"), "-m", "localstack.runtime.main"]
        environment = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "TMPDIR": str(folder),
            "SERVICES": "s3",
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }
        with running_server(command, environment, folder, port) as server:
            yield server


@contextlib.contextmanager
def running_s3rver(folder: Path) -> Iterator[S3Server]:
    """Start s3rver on files in folder/data."""
    with free_port() as port:
        command = [str(binary("s3rver")), "-d", str(folder / "data"), "-a", "127.0.0.1", "-p", str(port), "--silent"]
        environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        with running_server(command, environment, folder, port, keys=_S3RVER) as server:
            yield server


@contextlib.contextmanager
def running_seaweedfs(folder: Path) -> Iterator[S3Server]:
    """Start all of SeaweedFS in one process. Each bucket takes volumes of its own, so it may have many small ones."""
    (folder / "data").mkdir()
    access = {"credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "name": "test", "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [access]}))
    parts = ("master", "volume", "filer")
    with contextlib.ExitStack() as stack:
        port, *others = (stack.enter_context(free_port()) for _ in range(1 + 2 * len(parts)))
        options = [f"-{part}.port{kind}={others.pop()}" for part in parts for kind in ("", ".grpc")]
        command = [str(binary("weed")), "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-s3", f"-s3.port={port}", f"-s3.config={folder / 's3.json'}", *options]
        command += ["-volume.max=2000", "-master.volumeSizeLimitMB=64"]
        yield stack.enter_context(running_server(command, {"HOME": str(folder)}, folder, port))


@contextlib.contextmanager
def running_garage(folder: Path) -> Iterator[S3Server]:
    """Start one node of Garage with SQLite; its first key may create buckets."""
    with free_port() as port, free_port() as rpc_port:
        (folder / "garage.toml").write_text(
            f"""
            metadata_dir = "{folder / "metadata"}"
            data_dir = "{folder / "data"}"
            db_engine = "sqlite"
            replication_factor = 1
            rpc_bind_addr = "127.0.0.1:{rpc_port}"
            rpc_public_addr = "127.0.0.1:{rpc_port}"
            rpc_secret = "{"0" * 64}"
            [s3_api]
            s3_region = "{REGION}"
            api_bind_addr = "127.0.0.1:{port}"
            """
        )
        command = [str(binary("garage")), "-c", str(folder / "garage.toml"), "server"]
        command += ["--single-node", "--default-access-key"]
        key, secret = _GARAGE
        environment = {
            "HOME": str(folder),
            "RUST_LOG": "garage=warn",
            "GARAGE_DEFAULT_ACCESS_KEY": key,
            "GARAGE_DEFAULT_SECRET_KEY": secret,
        }
        with running_server(command, environment, folder, port, keys=_GARAGE) as server:
            yield server


def _java(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": os.environ["PATH"], "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder} -Xmx512m"}


#: All servers by name.
ALL_SERVERS: Mapping[str, Callable[[Path], contextlib.AbstractContextManager[S3Server]]] = {
    "minio": running_minio,
    "versitygw": running_versitygw,
    "seaweedfs": running_seaweedfs,
    "moto": running_moto,
    "localstack": running_localstack,
    "s3mock": running_s3mock,
    "s3proxy": running_s3proxy,
    "s3proxy+ignore-unknown-headers": lambda folder: running_s3proxy(folder, ignores_headers=True),
    "garage": running_garage,
    "rclone": running_rclone,
    "s3rver": running_s3rver,
}

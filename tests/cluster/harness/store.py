"""The cluster's object store from the test's side: put data in, look at snapshots, harm them."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import urllib3
from minio import Minio
from minio.credentials.providers import StaticProvider
from minio.error import S3Error
from minio.minioadmin import MinioAdmin

from cluster.harness.kubectl import Kubectl

NAMESPACE, SECRET, BUCKET = "cprjob-store", "minio-credentials", "cprjob"
ENDPOINT = "http://minio.cprjob-store:9000"  # as pods reach it


class Store:
    """One bucket of the MinIO in the cluster."""

    def __init__(self, address: str, access_key: str, secret_key: str) -> None:
        self._address, self._access_key, self._secret_key = address, access_key, secret_key
        self._pool = urllib3.PoolManager(timeout=10, retries=urllib3.Retry(total=3, backoff_factor=0.2))
        self._minio = Minio(address, access_key=access_key, secret_key=secret_key, secure=False, http_client=self._pool)
        self._admin = MinioAdmin(
            endpoint=address,
            credentials=StaticProvider(access_key, secret_key),
            secure=False,
            http_client=self._pool,
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._minio.put_object(BUCKET, key, io.BytesIO(data), len(data))

    def get(self, key: str) -> bytes:
        """Read an object."""
        response = self._minio.get_object(BUCKET, key)
        try:
            data: bytes = response.read()
        finally:
            response.close()
            response.release_conn()
        return data

    def keys(self, prefix: str = "") -> tuple[str, ...]:
        """Return all keys under a prefix, sorted."""
        return tuple(sorted(entry.object_name for entry in self._minio.list_objects(BUCKET, prefix, recursive=True)))

    def written(self, prefix: str) -> dict[str, float]:
        """Return when each object under a prefix was written, in seconds since 1970."""
        found = self._minio.list_objects(BUCKET, prefix, recursive=True)
        return {entry.object_name: entry.last_modified.timestamp() for entry in found}

    def delete(self, prefix: str) -> int:
        """Remove all objects under a prefix; return how many there were."""
        keys = self.keys(prefix)
        for key in keys:
            self._minio.remove_object(BUCKET, key)
        return len(keys)

    def corrupt(self, key: str) -> None:
        """Flip one bit in the middle of an object; its length stays."""
        data = bytearray(self.get(key))
        data[len(data) // 2] ^= 1
        self.put(key, bytes(data))

    def environment(self) -> dict[str, str]:
        """Return the variables by which a client of S3 on this machine reads the store."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._address}",
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
        }

    # --- users and buckets ---

    def add_user(self, access_key: str, secret_key: str) -> None:
        """Make a user who may read and write everything."""
        self._admin.user_add(access_key, secret_key)
        self._admin.attach_policy(["readwrite"], user=access_key)

    def remove_user(self, access_key: str) -> None:
        """Remove a user: what is signed with its key is refused from now on."""
        self._admin.user_remove(access_key)

    def accepts(self, access_key: str, secret_key: str) -> bool:
        """Return whether a user of that key may read the bucket."""
        client = Minio(
            self._address, access_key=access_key, secret_key=secret_key, secure=False, http_client=self._pool
        )
        try:
            return bool(client.bucket_exists(BUCKET))
        except S3Error:
            return False

    def limit(self, size: int) -> None:
        """Let the bucket take no more bytes than that; 0 takes the limit away."""
        self._admin.bucket_quota_set(BUCKET, size)


@contextmanager
def connect(kubectl: Kubectl) -> Iterator[Store]:
    """Open the store by a port of the stable node, to which this machine has a route."""
    secret = {
        key: kubectl("-n", NAMESPACE, "get", "secret", SECRET, "-o", f"go-template={{{{.data.{key}|base64decode}}}}")
        for key in ("accessKey", "secretKey")
    }
    (node,) = kubectl.get("nodes", "-l", "cprjob.io/stable=true")["items"]
    host = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    (port,) = kubectl.get("-n", NAMESPACE, "service", "minio-outside")["spec"]["ports"]
    store = Store(f"{host}:{port['nodePort']}", secret["accessKey"], secret["secretKey"])
    try:
        yield store
    finally:
        store.close()

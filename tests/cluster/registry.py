"""A registry of one image in an OCI layout folder, for the time of one push: registry.py LAYOUT COMMAND...

ADDRESS in COMMAND's arguments stands for its address. Only of a registry does buildah ask which layers exist:
after a change of the source a push takes one second, where a push to a folder compresses all of the image again.
"""

import hashlib
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

ADDRESS = ("127.0.0.1", 15731)  # always the same: buildah remembers which layers it sent to which address


class Registry(BaseHTTPRequestHandler):
    """The part of the distribution protocol that a push needs."""

    protocol_version = "HTTP/1.1"
    layout: Path
    kinds: ClassVar[dict[str, str]] = {}  # the media types of manifests, by digest

    def do_HEAD(self) -> None:
        """Answer whether a blob or a manifest is there."""
        digest = self.path.rsplit("/", 1)[-1]
        blob = self._blob(digest)
        if blob.exists():
            size, kind = str(blob.stat().st_size), self.kinds.get(digest, "application/octet-stream")
            self._answer(200, {"Content-Length": size, "Content-Type": kind, "Docker-Content-Digest": digest})
        else:
            self._answer(404)

    def do_GET(self) -> None:
        """Answer the ping. Helm reads what it has sent before it gives it a tag."""
        if self.path == "/v2/":
            self._answer(200)
            return
        self.do_HEAD()
        blob = self._blob(self.path.rsplit("/", 1)[-1])
        if blob.exists():
            self.wfile.write(blob.read_bytes())

    def do_POST(self) -> None:
        """Begin an upload."""
        self._answer(202, {"Location": f"{urlsplit(self.path).path.rstrip('/')}/{uuid.uuid4().hex}"})

    def do_PATCH(self) -> None:
        """Take a piece of an upload."""
        with self._upload().open("ab") as file:
            for piece in self._body():
                file.write(piece)
            end = file.tell()
        self._answer(202, {"Location": self.path, "Range": f"0-{end - 1}"})

    def do_PUT(self) -> None:
        """End an upload, or take the manifest, which makes the image."""
        url = urlsplit(self.path)
        if "/manifests/" in url.path:
            data = b"".join(self._body())
            digest = "sha256:" + hashlib.sha256(data).hexdigest()
            self._blob(digest).write_bytes(data)
            self.kinds[digest] = str(self.headers["Content-Type"])
            descriptor = {"mediaType": self.headers["Content-Type"], "digest": digest, "size": len(data)}
            (self.layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [descriptor]}))
        else:
            (digest,) = parse_qs(url.query)["digest"]
            with self._upload().open("ab") as file:
                for piece in self._body():
                    file.write(piece)
            self._upload().rename(self._blob(digest))
        self._answer(201, {"Docker-Content-Digest": digest})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def _blob(self, digest: str) -> Path:
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _upload(self) -> Path:
        return self.layout / "upload" / urlsplit(self.path).path.rsplit("/", 1)[-1]

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def main(layout: Path, command: list[str]) -> int:
    """Serve the folder while the command runs; return its exit status."""
    for folder in ("blobs/sha256", "upload"):
        (layout / folder).mkdir(parents=True, exist_ok=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    Registry.layout = layout
    with ThreadingHTTPServer(ADDRESS, Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "{}:{}".format(*ADDRESS)
        done = subprocess.run([part.replace("ADDRESS", address) for part in command], check=False)
        server.shutdown()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

"""Images as OCI layout folders, made with the standard library alone: no environment is there yet.

    oci.py pack BINARY PATH LAYOUT       an image of one static binary, at PATH
    oci.py load LAYOUT NAME CTR...       onto a node by its containerd, with the command CTR...
    oci.py prune LAYOUT                  drop what later images replaced

`load` sends only the blobs that the node lacks: after a change of the source, a few small layers.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _put(layout: Path, kind: str, data: bytes) -> dict[str, Any]:
    """Store a blob; return its descriptor."""
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    _blob(layout, digest).write_bytes(data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def _member(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    archive.addfile(info, io.BytesIO(data))


def pack(binary: Path, path: str, layout: Path) -> None:
    """Write the image that holds one binary and starts it."""
    shutil.rmtree(layout, ignore_errors=True)
    (layout / "blobs" / "sha256").mkdir(parents=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _member(archive, path.lstrip("/"), binary.read_bytes(), 0o755)
    layer = _put(layout, LAYER, buffer.getvalue())
    config = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": [path]}}
    config["rootfs"] = {"type": "layers", "diff_ids": [layer["digest"]]}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]}
    manifest["config"] = _put(layout, CONFIG, json.dumps(config).encode())
    index = {"schemaVersion": 2, "manifests": [_put(layout, MANIFEST, json.dumps(manifest).encode())]}
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").write_text(json.dumps(index))


def _closure(layout: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest's descriptor and the digests of all blobs of the image."""
    descriptor = json.loads((layout / "index.json").read_text())["manifests"][-1]
    manifest = json.loads(_blob(layout, descriptor["digest"]).read_text())
    layers = [layer["digest"] for layer in manifest["layers"]]
    return descriptor, [*dict.fromkeys([*layers, manifest["config"]["digest"], descriptor["digest"]])]


def load(layout: Path, name: str, ctr: Sequence[str]) -> None:
    """Import the image under the name, unless the node has this very one already."""
    descriptor, digests = _closure(layout)
    listed = _output(*ctr, "images", "ls", f"name=={name}")
    if descriptor["digest"] in listed:
        return
    if name in listed:  # kept, or the layers that both share may be collected between import and unpacking
        _output(*ctr, "images", "tag", "--force", name, f"{name}-before")
    there = set(_output(*ctr, "content", "ls", "-q").split())
    named = {key: descriptor[key] for key in ("mediaType", "digest", "size")}
    named["annotations"] = {"io.containerd.image.name": name}
    with subprocess.Popen([*ctr, "images", "import", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with tarfile.open(fileobj=process.stdin, mode="w|", bufsize=1 << 20) as archive:
            for digest in digests:
                if digest not in there:
                    archive.add(_blob(layout, digest), "blobs/sha256/" + digest.removeprefix("sha256:"))
            _member(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            _member(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [named]}).encode())
        process.stdin.close()
        if process.wait() != 0:
            _output(*ctr, "images", "rm", name)  # named, but not unpacked: the next load must not take it for loaded
            sys.exit(f"{name}: the node refused the image")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # its errors go to ours


def prune(layout: Path) -> None:
    """Keep the last image written to the folder; drop those that it replaced."""
    descriptor, digests = _closure(layout)
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [descriptor]}))
    keep = {digest.removeprefix("sha256:") for digest in digests}
    for blob in (layout / "blobs" / "sha256").iterdir():
        if blob.name not in keep:
            blob.unlink()


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["pack", binary, path, layout]:
            pack(Path(binary), path, Path(layout))
        case ["load", layout, name, *ctr]:
            load(Path(layout), name, ctr)
        case ["prune", layout]:
            prune(Path(layout))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

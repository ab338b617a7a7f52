"""The environment of a container in its pod: files, variables and free ports of a process.

Each volume becomes a folder `volumes/NAME` of the pod's own folder; a value of an environment variable that names a
path below a mount point is rewritten to that folder. The log and the termination message are files of the pod's folder.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from cpr_contract import env
from cpr_operator.api.quantities import main_container
from cpr_operator.cluster.local.object_files import write_atomically
from cpr_operator.cluster.protocol import RefusedError, UnavailableError

LOOPBACK = "127.0.0.1"
#: Below the range from which the kernel takes ports for outgoing connections.
FIRST, LAST = 20000, 32000
PORTS_PER_BLOCK = 4
ATTEMPTS = 200
#: The maximum of a termination message in Kubernetes.
MAX_TERMINATION_BYTES = 4096
_ANNOTATION = "metadata.annotations['"


@dataclass(frozen=True, slots=True)
class PodFolder:
    """The folder of one pod; `secrets` is the folder of all Secrets."""

    root: Path
    secrets: Path

    @property
    def log(self) -> Path:
        """The output of the process."""
        return self.root / "log.txt"

    @property
    def termination(self) -> Path:
        """The file of the termination message."""
        return self.root / "termination"

    def write_volumes(self, pod: Mapping[str, Any]) -> None:
        """Create every volume. Raises RefusedError if a Secret of the pod does not exist."""
        self.root.mkdir(parents=True, exist_ok=True)
        for volume in pod["spec"].get("volumes", ()):
            folder = self._volume(volume["name"])
            folder.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                self._write_secret(folder, volume["secret"])
        self.write_annotations(pod)

    def write_annotations(self, pod: Mapping[str, Any]) -> None:
        """Renew the volumes that show the pod's annotations."""
        for volume in pod["spec"].get("volumes", ()):
            for item in volume.get("downwardAPI", {}).get("items", ()):
                field = item["fieldRef"]["fieldPath"]
                if not field.startswith(_ANNOTATION):
                    raise RefusedError(f"local mode shows annotations in downwardAPI volumes, not {field}")
                name = field.removeprefix(_ANNOTATION).removesuffix("']")
                content = str(pod["metadata"].get("annotations", {}).get(name, ""))
                write_atomically(self._volume(volume["name"]) / item["path"], content.encode())

    def read_termination(self) -> str:
        """The termination message; empty without one."""
        try:
            return self.termination.read_bytes()[:MAX_TERMINATION_BYTES].decode(errors="replace")
        except FileNotFoundError:
            return ""

    def environment(self, pod: Mapping[str, Any]) -> dict[str, str]:
        """The main container's own variables, with paths of this machine."""
        main = main_container(pod)
        mounts = main.get("volumeMounts", ())
        places = {PurePosixPath(each["mountPath"]): self._volume(each["name"]) for each in mounts}
        places[PurePosixPath(main.get("terminationMessagePath", env.TERMINATION_MOUNT))] = self.termination
        return {item["name"]: _place(_value(item), places) for item in main.get("env", ())}

    def _volume(self, name: str) -> Path:
        return self.root / "volumes" / name

    def _write_secret(self, folder: Path, source: Mapping[str, Any]) -> None:
        secret = self.secrets / source["secretName"]
        if not secret.is_dir():
            raise RefusedError(f"Secret {source['secretName']} not found: put its keys as files into {secret}")
        keys = {path.name: path for path in secret.iterdir()}
        items = source.get("items") or [{"key": key, "path": key} for key in keys]
        for item in items:
            if item["key"] not in keys:
                raise RefusedError(f"Secret {source['secretName']} has no key {item['key']}")
            write_atomically(folder / item["path"], keys[item["key"]].read_bytes(), mode=0o600)


class PortBlocks:
    """Blocks of `PORTS_PER_BLOCK` consecutive free ports on the loopback interface.

    A process listens some time after it is given its ports. Until `give_back`, no other `PortBlocks` on this machine,
    of any process, gives the same block: a UDP socket on its first port reserves it, and does not affect TCP.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: dict[int, socket.socket] = {}

    def take(self) -> int:
        """The first port of a block. Raises `UnavailableError` if none is found."""
        for _ in range(ATTEMPTS):
            base = self._rng.randrange(FIRST, LAST, PORTS_PER_BLOCK)
            if (held := _bound(base, socket.SOCK_DGRAM)) is None:
                continue
            if all(map(_is_free, range(base, base + PORTS_PER_BLOCK))):
                self._held[base] = held
                return base
            held.close()
        raise UnavailableError(f"no {PORTS_PER_BLOCK} free ports in a row between {FIRST} and {LAST}")

    def give_back(self, base: int) -> None:
        """Free the block."""
        self._held.pop(base).close()

    def close(self) -> None:
        """Free all blocks."""
        for base in tuple(self._held):
            self.give_back(base)


def _value(variable: Mapping[str, Any]) -> str:
    """A variable's value. A reference to a field of the pod may name its address only."""
    source = variable.get("valueFrom")
    if source is None:
        return str(variable.get("value", ""))
    field = source.get("fieldRef", {}).get("fieldPath")
    if field != "status.podIP":
        raise RefusedError(f"local mode cannot fill in variable {variable['name']} from {source}")
    return LOOPBACK


def _place(value: str, places: Mapping[PurePosixPath, Path]) -> str:
    if not value.startswith("/"):
        return value
    path = PurePosixPath(value)
    for mount, folder in places.items():
        if path.is_relative_to(mount):
            return str(folder / path.relative_to(mount))
    return value


def _is_free(port: int) -> bool:
    probe = _bound(port, socket.SOCK_STREAM)
    if probe is None:
        return False
    probe.close()
    return True


def _bound(port: int, kind: socket.SocketKind) -> socket.socket | None:
    made = socket.socket(type=kind)
    try:
        made.bind((LOOPBACK, port))
    except OSError:
        made.close()
        return None
    return made

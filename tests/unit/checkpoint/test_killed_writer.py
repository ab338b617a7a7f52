"""A process killed in the middle of a save leaves nothing that looks like one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpr_trainer.store.folder import FolderStore
from support.saves import ShardBench, same

WRITER = """
import os, signal, sys
from pathlib import Path
from cpr_trainer.checkpoint.format.records import write_origin
from cpr_trainer.store.folder import FolderStore
from support.saves import ShardBench, origin

bench = ShardBench(FolderStore(Path(sys.argv[1])), rows=(9000,), dim=64)
write_origin(bench.store, origin(1))
def save(step):
    bench.change(*range(9000))
    bench.save(step)
save(1)
files, sync = int(sys.argv[2]), os.fsync
def fsync(descriptor):
    global files
    if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
        files -= 1
        if files < 0:
            os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)
os.fsync = fsync
save(2)
"""


@pytest.mark.parametrize("files", [0, 3])  # in the first part; in the manifest
def test_a_writer_killed_while_it_writes_an_object(tmp_path: Path, files: int) -> None:
    python_path = os.pathsep.join(sys.path)
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), str(files)],
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": python_path},
    )
    assert writer.returncode == -9
    bench = ShardBench(FolderStore(tmp_path), rows=(9000,), dim=64)
    saved, seed = bench.choices()
    restored, home = bench.restore(saved)
    bench.change(*range(9000))
    assert restored.step == 1
    assert same(bench.values(home), bench.values())
    assert seed.kind == "Seed"
    assert not [e.key for e in bench.store.list("") if e.key.endswith("/step-000000002/manifest.json")]

"""A process killed in the middle of a save leaves nothing that looks like one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cpr_trainer.snapshot import candidates, load_shard
from cpr_trainer.store.folder import FolderStore

ROWS, DIM = 9000, 64

WRITER = f"""
import os, signal, sys
import torch
from pathlib import Path
from cpr_contract.manifests import Origin
from cpr_trainer.snapshot import ShardMeta, save_shard, write_origin
from cpr_trainer.store.folder import FolderStore

store = FolderStore(Path(sys.argv[1]))
write_origin(store, Origin(1, "uid", 1, 0, 1, None, None, 0, 0))
def save(step):
    meta = ShardMeta("uid", 1, 0, 1, "Anchor", step, step, "layout", (step,), ())
    save_shard(store, meta, torch.full(({ROWS}, {DIM}), float(step)), torch.full(({ROWS},), float(step)))
save(1)
files, sync = int(sys.argv[2]), os.fsync
def fsync(descriptor):
    global files
    if not os.path.isdir(f"/proc/self/fd/{{descriptor}}"):
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
    writer = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), str(files)], check=False, timeout=60)
    assert writer.returncode == -9
    store = FolderStore(tmp_path)
    saved, seed = candidates(store, "uid", 1, 0, 2, None, "layout")
    rows, state = torch.zeros(ROWS, DIM), torch.zeros(ROWS)
    assert load_shard(store, saved, rows, state).step == 1
    assert bool((rows == 1).all())
    assert bool((state == 1).all())
    assert seed.kind == "Seed"
    parts = [key for key in store.list("") if "/step-000000002/" in key]
    assert len(parts) == files, "whole parts only, and no manifest"

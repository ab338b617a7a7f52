"""A shard process that dies by SIGKILL at one moment of one write to its store.

    python killed_shard.py KEYS before|half|after

KEYS is a regular expression; the first write of an object whose key it matches is the one: nothing of it is written,
half of its bytes are, or all is done. Parts hold 7 rows here, so that a small save has several.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from typing import Any

from cpr_trainer.process import main
from cpr_trainer.snapshot import writing
from cpr_trainer.store.folder import FolderStore

KEYS, MOMENT = re.compile(sys.argv[1]), sys.argv[2]
PART_ROWS = 7

put, sync = FolderStore.put, os.fsync
here = threading.local()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killing_put(self: FolderStore, key: str, *arguments: Any, **options: Any) -> int:
    here.hit = KEYS.search(key) is not None
    if here.hit and MOMENT == "before":
        die()
    crc32c = put(self, key, *arguments, **options)
    if here.hit and MOMENT == "after":
        die()
    return crc32c


def killing_sync(descriptor: int) -> None:
    is_file = not os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112 -- a link of the system
    if is_file and getattr(here, "hit", False) and MOMENT == "half":
        os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
        die()
    sync(descriptor)


if __name__ == "__main__":
    FolderStore.put = killing_put
    os.fsync = killing_sync  # type: ignore[assignment]
    writing.rows_per_part = lambda _rows, _row_bytes: PART_ROWS  # type: ignore[attr-defined, assignment]
    os._exit(main(["shard"], os.environ))

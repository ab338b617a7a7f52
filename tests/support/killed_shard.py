"""A shard process that dies by SIGKILL at one moment of one write to its store."""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import dataclass
from typing import Any

from cpr_trainer.checkpoint.write import writer
from cpr_trainer.process import main
from cpr_trainer.store.folder import FolderStore

PART_ROWS = 7

put, sync = FolderStore.put, os.fsync
here = threading.local()


@dataclass(frozen=True)
class KilledAt:
    """Runs a shard up to the first write of an object whose key `keys`, a regular expression, matches.

    `moment` is "before" (nothing of it is written), "half" (half of its bytes are) or "after" (all is done). Parts hold
    7 rows here, so that a small save has several.
    """

    keys: str
    moment: str

    def __call__(self, arguments: list[str]) -> int:
        """Patch this process, and be the shard."""
        FolderStore.put = self._put
        os.fsync = self._sync  # type: ignore[assignment]
        writer.rows_per_part = lambda _rows, _row_bytes: PART_ROWS  # type: ignore[attr-defined, assignment]
        return main(arguments, os.environ)

    @property
    def _put(self) -> Any:
        def killing_put(store: FolderStore, key: str, *arguments: Any, **options: Any) -> int:
            here.hit = re.search(self.keys, key) is not None
            if here.hit and self.moment == "before":
                die()
            crc32c = put(store, key, *arguments, **options)
            if here.hit and self.moment == "after":
                die()
            return crc32c

        return killing_put

    def _sync(self, descriptor: int) -> None:
        is_file = not os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112 -- a link of the system
        if is_file and getattr(here, "hit", False) and self.moment == "half":
            os.truncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        sync(descriptor)


def die() -> None:
    """End this process as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)

"""Shard processes that die by SIGKILL at one moment of one write to their store, or of a push."""

from __future__ import annotations

import os
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.write import writer
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.process import main
from cpr_trainer.store.folder import FolderStore

PART_ROWS = 7

put, sync = FolderStore.put, os.fsync
here = threading.local()


@dataclass(frozen=True)
class KilledAt:
    """Runs a shard up to the first write of an object with a key that matches the regular expression `keys`.

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


@dataclass(frozen=True)
class KilledInPushes:
    """Runs a shard with processes that die in the push of each of `steps`, once, with the redo record complete.

    `moment` is "before" (no row is written), "half" (half of them are) or "after" (all are, and the push does not count
    as applied yet).
    """

    steps: tuple[int, ...]
    moment: str

    def __call__(self, arguments: list[str]) -> int:
        """Patch this process, and be the shard."""
        apply, put = Arena.apply, Arena._put
        markers, now = Path(os.environ[env.SCRATCH_DIR]), [0]

        def noting_apply(arena: Arena, slots: Ints, *arguments: Any, **named: Any) -> bool:
            _, _, now[0], *_ = arguments
            return apply(arena, slots, *arguments, **named)

        def killing_put(arena: Arena, slots: Ints, edges: Any, buffer: Any) -> None:
            mark = markers / f"struck-{now[0]}"
            if now[0] not in self.steps or mark.exists():
                return put(arena, slots, edges, buffer)
            mark.touch()
            if self.moment == "half":
                ((rows, state),) = buffer
                half = len(slots) // 2
                put(arena, slots[:half], (0, half), [(rows[:half], state[:half])])
            elif self.moment == "after":
                put(arena, slots, edges, buffer)
            return die()

        Arena.apply, Arena._put = noting_apply, killing_put  # type: ignore[assignment]
        return main(arguments, os.environ)


def die() -> None:
    """End this process as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)

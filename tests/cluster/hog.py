"""Fill the memory of a process's container until the kernel kills that process, as if it had taken all of it.

Usage: hog.py PID. Needs root. The kernel kills the process before the hog, by its OOM score. The hog frees all memory
when it ends.
"""

import sys
from pathlib import Path

CHUNK = 1 << 20  # less than the death of any process gives back
MOST = 8 << 30  # what no container of the tests may use


def group(pid: str) -> tuple[Path, str]:
    """Return the folder of the process's memory cgroup, and the name of the file that counts kills in it."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.oom_control"
    unified = Path(f"/proc/{pid}/cgroup").read_text().rpartition("0::")[2].strip()
    return Path("/sys/fs/cgroup") / unified.lstrip("/"), "memory.events"


def kills(counter: Path) -> int:
    """Return how many processes of the group were killed for memory so far."""
    counts = dict(line.split() for line in counter.read_text().splitlines())
    return int(counts["oom_kill"])


def main(pid: str) -> None:
    """Join the group and take memory until a process in it is killed; raise MemoryError if none is."""
    folder, name = group(pid)
    before = kills(folder / name)
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    (folder / "cgroup.procs").write_text("0")
    taken: list[bytearray] = []
    while kills(folder / name) == before:
        if len(taken) * CHUNK > MOST:
            raise MemoryError(f"{folder} has no limit")
        taken.append(bytearray(b"x" * CHUNK))


if __name__ == "__main__":
    main(sys.argv[1])

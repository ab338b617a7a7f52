"""The number of processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def processors(own_group: Path = _OWN_GROUP, groups: Path = _GROUPS) -> int:
    """Return the number of processors in this process's affinity mask, or its CPU quota rounded up if that is less.

    The quota is that of its control group (version 2) or of a parent group; a container's CPU limit sets it.
    `own_group` is the file that names the group, and `groups` the folder of all groups.
    """
    most = len(os.sched_getaffinity(0))
    return min((most, *_quotas(own_group, groups)))


def _quotas(own_group: Path, groups: Path) -> Iterator[int]:
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    for group in (groups / own, *(groups / own).parents):
        if not group.is_relative_to(groups):
            return
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except (OSError, ValueError):  # the root of all groups has none
            continue
        if quota != "max":
            yield max(1, -(-int(quota) // int(period)))

"""A mode as a contender of the windows of `cprjob bench train`, and what its members have counted."""

from __future__ import annotations

import asyncio
import re
import struct
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cprjob_bench.commands.redundancy.design import COUNTS, MODES, with_mode
from cprjob_bench.commands.train.contenders import CprJob, JobRun
from cprjob_bench.documents.redundancy import Counts
from cprjob_bench.options import RedundancyMode

_ANSWER_S = 5.0
_COUNTS = struct.Struct(f"={len(Counts.FIELDS)}q")


class Contender(CprJob):
    """A CPRJob in some mode."""

    def __init__(self, name: RedundancyMode, document: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        super().__init__(document, environment)
        self.name = name.value
        self._document = with_mode(document, MODES[name])

    def run_of(self, cluster: LocalCluster, job: JobView, folder: Path) -> JobRun:
        """See `CprJob`."""
        return CountedRun(cluster, job, folder)


class CountedRun(JobRun):
    """A job whose members count. It makes no save: what saves cost is another bench's question."""

    async def saves(self) -> int | None:
        """See `Run`."""
        return None

    def sent_bytes(self) -> int | None:
        """See `Run`."""
        return sum(counts.sent_bytes for counts in read_counts(self.folder))

    async def kept_bytes(self) -> Mapping[str, int]:
        """See `Run`: the parity of all shards, and the log of pushes of all trainers."""
        pods = await self.cluster.list_pods(self.job)
        shards = [pod for pod in pods if pod.role == env.ROLE_SHARD and pod.phase == "Running"]
        parity = [await asyncio.to_thread(_parity_bytes, pod) for pod in shards]
        return {"parity": sum(parity), "log": sum(counts.log_bytes for counts in read_counts(self.folder))}


def read_counts(folder: Path, pod: str = "*") -> list[Counts]:
    """The counts of all pods that ever ran in the folder of a local job, or of one."""
    files = folder.glob(f"pods/{pod}/volumes/*/{COUNTS}")
    return [Counts(*_COUNTS.unpack(data)) for file in files if len(data := file.read_bytes()) == _COUNTS.size]


def _parity_bytes(shard: PodView) -> int:
    url = f"http://{shard.host}:{shard.port_base + env.HTTP_PORT}/metrics"
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
        text = answer.read().decode()
    found = re.search(r"^cprjob_shard_parity_bytes (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0

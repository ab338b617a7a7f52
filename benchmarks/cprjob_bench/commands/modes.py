"""The modes of `cprjob bench redundancy`, the jobs that they are measured with, and a mode as a system."""

from __future__ import annotations

import asyncio
import copy
import re
import struct
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_contract.address import page_url
from cpr_contract.trace import STEP_TRACE
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cprjob_bench.bench_documents import COUNTS_FILE, EAGER, Counts
from cprjob_bench.commands.bench_result import bench_job
from cprjob_bench.commands.killed_job import TRACE
from cprjob_bench.commands.systems import CprJob, JobRun, set_container_fields
from cprjob_bench.options import RedundancyMode

# The modes, and the jobs that they are measured with. Pure.


#: The file with a member's counts, below the mount point of its volume.
COUNTS = "counts"
#: Windows and kills with parity see no save: nobody asks for one before this.
NO_SAVE_S = 3600
_MIB = 2**20
#: More samples than any run trains.
_ENDLESS = 2**40
#: Of the job whose shards are killed. A batch uses 8,192 rows: ECRec's used 8,900.
DIM, TABLES, BATCH_SIZE = 64, 8, 1024
#: Bytes of a row with the state of its row-wise optimizer.
ROW_BYTES = 4 * (DIM + 1)
#: The interval between saves where they are needed, at least, and MiB of a shard that one second of it is enough for.
_SAVE_S, _SAVED_MIB_PER_S = 4, 64


@dataclass(frozen=True, slots=True)
class Mode:
    """What a mode switches on. data_shards: k; 0: no parity. eager: parity as ECRec keeps it.

    why_no_kill: why no shard is killed in it; empty where shards are.
    """

    replays: bool
    data_shards: int = 0
    eager: bool = False
    why_no_kill: str = ""

    @property
    def recovery(self) -> Mapping[str, Any]:
        """`spec.recovery` of its jobs."""
        if not self.replays:
            return {"replay": {"mode": "Off"}}
        redundancy = {"redundancy": {"dataShards": self.data_shards}} if self.data_shards else {}
        return {"replay": {"mode": "Required", "memory": "1Gi"}, **redundancy}


MODES: Mapping[RedundancyMode, Mode] = {
    RedundancyMode.NONE: Mode(
        replays=False, why_no_kill="a lost shard goes back to its last save, and what came later is lost"
    ),
    RedundancyMode.REPLAY: Mode(replays=True),
    RedundancyMode.PARITY_1: Mode(replays=True, data_shards=1),
    RedundancyMode.PARITY_2: Mode(replays=True, data_shards=2),
    RedundancyMode.PARITY_4: Mode(replays=True, data_shards=4),
    # The operator tells shards of their neighbours only where the job replays; its members keep no pushes all the same.
    RedundancyMode.EAGER: Mode(
        replays=True,
        data_shards=4,
        eager=True,
        why_no_kill="of ECRec the bench has what it does while nothing fails, not its recovery",
    ),
}
#: So many shards a job has at least in all modes.
FEWEST_SHARDS = 1 + max(mode.data_shards for mode in MODES.values())


def with_mode(document: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """A CPRJob in a mode, whose members count and write traces."""
    made = copy.deepcopy(dict(document))
    made["spec"]["recovery"] = dict(mode.recovery)
    files = {STEP_TRACE: TRACE, COUNTS_FILE: COUNTS}
    variables = [{"name": name, "value": f"{env.SCRATCH_MOUNT}/{file}"} for name, file in files.items()]
    if mode.eager:
        variables.append({"name": EAGER, "value": "1"})
    set_container_fields(made, {"env": variables, "command": [sys.executable, "-m", "cprjob_bench", "cpr_trainer"]})
    return made


def table_rows(size_mib: int, shards: int) -> int:
    """How many rows each table has, so that a shard has so many MiB of rows and state."""
    return size_mib * _MIB * shards // (ROW_BYTES * TABLES)


def killed_job(size_mib: int, mode: Mode, samples: Path, store: Path) -> dict[str, Any]:
    """A CPRJob with a budget of 0, whose shards hold `size_mib` MiB each, over the file of `sweep`.

    Each row is used once in a pass over it. With parity there is no save, so the store gives nothing back.
    """
    shards = max(mode.data_shards + 1, 2)
    interval_s = NO_SAVE_S if mode.data_shards else max(_SAVE_S, size_mib // _SAVED_MIB_PER_S)
    rows, names = table_rows(size_mib, shards), [f"c{place}" for place in range(TABLES)]
    job = bench_job(
        "bench-redundancy",
        model={
            "embeddingDim": DIM,
            "bottomMlp": [DIM],
            "topMlp": [64, 1],
            "numeric": 1,
            "tables": [{"name": name, "rows": rows, "ids": "RowNumber"} for name in names],
        },
        data={
            "format": "Parquet",
            "uri": str(samples),
            "columns": {"labels": ["label"], "numbers": ["x"], "categories": names},
            "samples": _ENDLESS,
            "batchSize": BATCH_SIZE,
        },
        trainers={"replicas": 1, "workers": 1},
        shards={"replicas": shards, "spares": 1},
        failurePolicy={"restartLimit": {"count": 1000}},
        snapshots={
            "store": {"endpoint": store.as_uri(), "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": interval_s},
        },
    )
    job["spec"]["accuracyBudget"] = {"portionOfLostSamples": 0}
    return with_mode(job, mode)


# A mode as a system of the windows of `cprjob bench train`, and what its members have counted.


_ANSWER_S = 5.0
_COUNTS = struct.Struct(f"={len(Counts.FIELDS)}q")


class ModeJob(CprJob):
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
    url = page_url(shard.host, shard.port_base + env.HTTP_PORT, "/metrics")
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 -- http
        text = answer.read().decode()
    found = re.search(r"^cprjob_shard_parity_bytes (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0

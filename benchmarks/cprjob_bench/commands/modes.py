"""The modes of `cprjob bench redundancy`, their jobs, and a job in a mode as a system of the windows."""

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
from cpr_contract.file_uris import page_url
from cpr_contract.trace import STEP_TRACE
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cprjob_bench.bench_documents import COUNTS_FILE, EAGER, Counts
from cprjob_bench.commands.bench_result import bench_job
from cprjob_bench.commands.killed_job import TRACE
from cprjob_bench.commands.systems import CprJob, JobRun, set_container_fields
from cprjob_bench.options import RedundancyMode

#: The file with a member's counts, below the mount point of its volume.
COUNTS = "counts"
#: The interval of jobs without saves: windows, and kills with parity, end before the first cut.
NO_SAVE_S = 3600
_MIB = 2**20
#: More samples than any run trains.
_ENDLESS = 2**40
#: The model and batches of the job with kills. A batch uses 8,192 rows: ECRec's used 8,900.
DIM, TABLES, BATCH_SIZE = 64, 8, 1024
#: Bytes of a row with the state of its row-wise optimizer.
ROW_BYTES = 4 * (DIM + 1)
#: The minimum interval between saves of jobs that need them, and MiB of a shard per second of it.
_SAVE_S, _SAVED_MIB_PER_S = 4, 64


@dataclass(frozen=True, slots=True)
class Mode:
    """The features of a mode. data_shards: k; 0: no parity. eager: ECRec's parity.

    why_no_kill: the reason to kill no shard in it; empty if shards are killed.
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
        replays=False, why_no_kill="a lost shard restores its last save, and later updates are lost"
    ),
    RedundancyMode.REPLAY: Mode(replays=True),
    RedundancyMode.PARITY_1: Mode(replays=True, data_shards=1),
    RedundancyMode.PARITY_2: Mode(replays=True, data_shards=2),
    RedundancyMode.PARITY_4: Mode(replays=True, data_shards=4),
    # Rosters have a shard's neighbours only with replay; members of this mode keep no pushes nevertheless.
    RedundancyMode.EAGER: Mode(
        replays=True,
        data_shards=4,
        eager=True,
        why_no_kill="the bench implements ECRec's training without failures, not its recovery",
    ),
}
#: The minimum of shards of a job, in all modes.
MIN_SHARDS = 1 + max(mode.data_shards for mode in MODES.values())


def with_mode(document: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """Return a CPRJob in a mode, with members that count and write traces."""
    made = copy.deepcopy(dict(document))
    made["spec"]["recovery"] = dict(mode.recovery)
    files = {STEP_TRACE: TRACE, COUNTS_FILE: COUNTS}
    variables = [{"name": name, "value": f"{env.SCRATCH_MOUNT}/{file}"} for name, file in files.items()]
    if mode.eager:
        variables.append({"name": EAGER, "value": "1"})
    set_container_fields(made, {"env": variables, "command": [sys.executable, "-m", "cprjob_bench", "cpr_trainer"]})
    return made


def table_rows(size_mib: int, shards: int) -> int:
    """Return the number of rows of each table for shards with `size_mib` MiB of rows and state."""
    return size_mib * _MIB * shards // (ROW_BYTES * TABLES)


def killed_job(size_mib: int, mode: Mode, samples: Path, store: Path) -> dict[str, Any]:
    """Return a CPRJob with a budget of 0 and shards of `size_mib` MiB, over the file of `sweep`.

    A pass over it uses each row once. With parity there is no save, so a shard cannot restore from the store.
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


_ANSWER_S = 5.0
_COUNTS = struct.Struct(f"={len(Counts.FIELDS)}q")


class ModeJob(CprJob):
    """A CPRJob in a mode."""

    def __init__(self, name: RedundancyMode, document: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        super().__init__(document, environment)
        self.name = name.value
        self._document = with_mode(document, MODES[name])

    def run_of(self, cluster: LocalCluster, job: JobView, folder: Path) -> JobRun:
        """See `CprJob`."""
        return CountedRun(cluster, job, folder)


class CountedRun(JobRun):
    """A job with members that count. It makes no save, because another bench measures saves."""

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
    """Return the counts of all past and present pods in the folder of a local job, or of one pod."""
    files = folder.glob(f"pods/{pod}/volumes/*/{COUNTS}")
    return [Counts(*_COUNTS.unpack(data)) for file in files if len(data := file.read_bytes()) == _COUNTS.size]


def _parity_bytes(shard: PodView) -> int:
    url = page_url(shard.host, shard.port_base + env.HTTP_PORT, "/metrics")
    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 -- http
        text = answer.read().decode()
    found = re.search(r"^cprjob_shard_parity_bytes (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0

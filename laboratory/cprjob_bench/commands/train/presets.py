"""Jobs to measure with: the models of the DLRM literature, over synthetic samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract.spec import Precision
from cprjob_bench.commands.job import bench_job
from cprjob_bench.options import TrainPreset

BATCH_SIZE = 2048
#: More samples than any window trains, so that no run finishes by itself.
_ENDLESS = 2**40

#: Distinct values of the categorical columns of Criteo's two data sets, the second with at most 40 M a column.
_KAGGLE = (
    "1460 583 10131227 2202608 305 24 12517 633 3 93145 5683 8351593 3194 27 14992 5461306 10 5652 2173 4 7046547 \
    18 15 286181 105 142572"
)
_TERABYTE = (
    "39884406 39043 17289 7420 20263 3 7120 1543 63 38532951 2953546 403346 10 2208 11938 155 4 976 14 39979771 \
    25641295 39664984 585935 12972 108 36"
)


@dataclass(frozen=True, slots=True)
class _Model:
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    columns: str


_MODELS: Mapping[TrainPreset, _Model] = {
    TrainPreset.KAGGLE: _Model(16, (512, 256, 64, 16), (512, 256, 1), _KAGGLE),
    TrainPreset.TERABYTE: _Model(64, (512, 256, 64), (512, 512, 256, 1), _TERABYTE),
    TrainPreset.MLPERF: _Model(128, (512, 256, 128), (1024, 1024, 512, 256, 1), _TERABYTE),
}


def document(  # noqa: PLR0913 -- one parameter per part of the job
    preset: TrainPreset,
    *,
    rows: int,
    trainers: int,
    shards: int,
    workers: int,
    precision: Precision,
    samples: Path,
    store: Path,
    interval_s: int,
) -> dict[str, Any]:
    """A CPRJob of this model over the file `samples`, with a cut every `interval_s` seconds.

    rows: the maximum per table.
    """
    model = _MODELS[preset]
    tables = [
        {"name": f"c{place}", "rows": min(int(values), rows)}
        for place, values in enumerate(model.columns.split(), start=1)
    ]
    return bench_job(
        f"bench-{preset}",
        model={
            "embeddingDim": model.dim,
            "bottomMlp": list(model.bottom),
            "topMlp": list(model.top),
            "tables": tables,
        },
        data={"format": "Criteo", "uri": str(samples), "samples": _ENDLESS, "batchSize": BATCH_SIZE},
        trainers={"replicas": trainers, "workers": workers, "precision": precision},
        shards={"replicas": shards},
        snapshots={
            "store": {"endpoint": f"file://{store}", "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": interval_s},
        },
    )

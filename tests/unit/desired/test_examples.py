"""The small examples fit on a small cluster, also as a user scales them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_operator.api.frozen_settings import replay_policy
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan, pod_manifest
from cpr_operator.desired.rosters import Document, shard_roster, trainer_roster

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = (
    "quickstart.yaml",
    "lost-node.yaml",
    "spares.yaml",
    "parquet.yaml",
    "ratings.yaml",
    "own_model/job.yaml",
    "own_data/job.yaml",
    "two_labels/job.yaml",
)
#: Nodes of 2 cores and 4 GiB, without the shares of kubelet, CNI, operator and a store.
NODES, NODE_CPU_M, NODE_MIB = 3, 1500, 2560
TRAINERS, SHARDS = 2, 4
JOB = JobId("research", "example", "0a1b2c3d-0000-4000-8000-000000000000")
SHARD = Document.of(shard_roster(Status(), Shard(index=0, incarnation=1), 1, stop=False))
TRAINER = Document.of(trainer_roster(Status(), Trainer(index=0, incarnation=1), 1))
UNITS = {"Gi": 1024, "Mi": 1}


def mib(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def milli(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def main(document: dict[str, Any], roster: Any) -> dict[str, Any]:
    """The resources of a member's main container."""
    spec = parse_spec(document["spec"])
    plan = PodPlan(JOB, spec, image="trainer:1", job_spec="{}", grace_s=30, replay=replay_policy(spec))
    containers = pod_manifest(plan, roster)["spec"]["containers"]
    return next(dict(c["resources"]) for c in containers if c["name"] == "main")


@pytest.mark.parametrize("name", SMALL)
def test_two_trainers_and_four_shards_fit_on_three_nodes_of_two_cores(name: str) -> None:
    document = yaml.safe_load((EXAMPLES / name).read_text("utf-8"))
    requested = [main(document, roster)["requests"] for roster in TRAINERS * [TRAINER] + SHARDS * [SHARD]]
    free = [(NODE_CPU_M, NODE_MIB)] * NODES
    for requests in requested:
        cpu, memory = milli(requests["cpu"]), mib(requests["memory"])
        node = next((n for n, (c, m) in enumerate(free) if c >= cpu and m >= memory), None)
        assert node is not None, "a pod stays Pending"
        free[node] = (free[node][0] - cpu, free[node][1] - memory)


@pytest.mark.parametrize("name", SMALL)
def test_memory_of_examples_fits_the_tables_and_the_process(name: str) -> None:
    """As in docs/operator.md: all tables on one shard, with the two moments of Adam, a quarter more, and 300 MiB."""
    document = yaml.safe_load((EXAMPLES / name).read_text("utf-8"))
    model = document["spec"]["model"]
    rows = sum(table["rows"] * table.get("dim", model["embeddingDim"]) for table in model["tables"])
    resources = main(document, SHARD)
    assert mib(resources["requests"]["memory"]) >= 300 + 1.25 * rows * 3 * 4 / 2**20
    assert mib(resources["limits"]["memory"]) >= mib(resources["requests"]["memory"])

"""The example of a network of one's own over bags of tags, on the real cluster, with a shard deleted by force.

Its code comes by a ConfigMap, so that no image has to be built; its data lies in the store.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.harness import Cluster, Space
from cluster.harness.store import BUCKET
from cluster.jobs import Run, account, failures, ledger, pod_template, verify

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"
JOB = yaml.safe_load((EXAMPLE / "job.yaml").read_text("utf-8"))["spec"]
DATA_KEY = "data/own-model/clicks.parquet"
ROWS, EPOCHS = 60_000, 3


@pytest.fixture
def clicks_with_tags(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """The example's rows, where the job reads them."""
    subprocess.run([sys.executable, EXAMPLE / "clicks.py", tmp_path, str(ROWS)], check=True)
    cluster.store.put(DATA_KEY, (tmp_path / "clicks.parquet").read_bytes())
    yield
    cluster.store.delete(DATA_KEY)


def template_with_code(space: Space) -> dict[str, Any]:
    """Return a pod template whose container finds the example's module beside our own."""
    data = {"dcn.py": (EXAMPLE / "dcn.py").read_text("utf-8")}
    space.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own-model"}, "data": data})
    template = pod_template()
    template["spec"]["volumes"] = [{"name": "code", "configMap": {"name": "own-model"}}]
    mount = {"name": "code", "mountPath": "/opt/cprjob/source/dcn.py", "subPath": "dcn.py", "readOnly": True}
    template["spec"]["containers"][0]["volumeMounts"] = [mount]
    return template


@pytest.mark.timeout(240, func_only=True)
@pytest.mark.usefixtures("clicks_with_tags")
class TestANetworkOfOnesOwn:
    def test_it_learns_from_bags_and_gets_back_a_shard_that_was_deleted(self, cluster: Cluster, space: Space) -> None:
        data = JOB["data"] | {"uri": f"s3://{BUCKET}/{DATA_KEY}", "epochs": EPOCHS, "batchSize": 128}
        template = template_with_code(space)
        run = Run.start(
            space, "own-model", model=JOB["model"], data=data, trainers__template=template, shards__replicas=2
        )
        run.reach(0.4)
        space.delete_pod(run.pod("shard", 1).name, force=True)
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert ledger(status) == account(cluster.store, status)
        assert status["progress"]["totalSamples"] == EPOCHS * 54_000
        assert status["progress"]["auc"] > 0.6, "tags and users tell the clicks"

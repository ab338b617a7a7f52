"""A real Prometheus scrapes operator and pods by the chart's monitors, and has an answer for what is asked of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.prometheus import Prometheus
from cluster.harness.store import BUCKET
from cluster.jobs import ENDLESS, Run, manifest
from support.chart import CHART, of_kind, render
from support.dashboard import panel_queries, variable_queries

pytestmark = pytest.mark.timeout(420, func_only=True)

MONITORS = ("serviceMonitor.enabled=true", "podMonitor.enabled=true")
#: Enough to be looked at, and few enough for an AUC, which leaves out the first fifth of the samples.
DATA = ENDLESS | {"samples": 400_000}
#: By the time it is asked, rates over so long have seen the job's failures.
WINDOW = "2m"
#: The data of the job that is scored by group.
SALES_KEY, SALES = "data/sales.csv", 4000


def sales() -> bytes:
    """Rows of a CSV: every other one is a click, and every shop has both."""
    rows = (f"{number % 2},{number % 7},{number // 2 % 5},{number % 11}" for number in range(SALES))
    return "\n".join(("click,price,shop,item", *rows, "")).encode()


def scored() -> dict[str, Any]:
    """A job that is evaluated by shop while it trains."""
    columns = {"labels": ["click"], "numbers": ["price"], "categories": ["shop", "item"]}
    data = {"format": "CSV", "uri": f"s3://{BUCKET}/{SALES_KEY}", "columns": columns, "batchSize": 64}
    return manifest(
        "scored",
        data=data | {"epochs": 3, "holdOut": 0.25},
        model__tables=[{"name": name, "rows": 100} for name in ("shop", "item")],
        evaluation={"everySamples": SALES // 4, "groupBy": "shop"},
        trainers__replicas=1,
        shards__replicas=1,
    )


class TestMonitoring:
    @pytest.fixture(scope="class")
    @classmethod
    def prometheus(cls, cluster: Cluster, space: Space) -> Iterator[Prometheus]:
        cluster.have("prometheus")
        prometheus = Prometheus(space)
        objects = render(*MONITORS)
        monitors = of_kind(objects, "ServiceMonitor") + of_kind(objects, "PodMonitor")
        assert len(monitors) == 2
        prometheus.start(monitors, (CHART / "files" / "alerts.yaml").read_text("utf-8"))
        yield prometheus
        prometheus.remove()

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, cluster: Cluster, space: Space, prometheus: Prometheus) -> Iterator[Run]:
        """A job that has lost a shard while Prometheus looked, one that is scored by group, and one that has failed."""
        space.apply(manifest("wrong", data__uri="s3://cprjob/data/nothing.tsv"))
        cluster.store.put(SALES_KEY, sales())
        space.apply(scored())
        run = Run.start(space, "watched", data=DATA)
        prometheus.wait_for('cprjob_phase{cprjob="watched", phase="Running"} == 1')
        run.slow_down()
        run.recover_from("the kill", lambda: cluster.nodes.signal(run.pod("shard", 1), "KILL"))
        space.wait_condition("wrong", "Failed")
        space.wait_condition("scored", "Complete", within_s=150)
        yield run
        cluster.store.delete(SALES_KEY)

    def test_dashboard_has_data_in_every_panel(self, space: Space, prometheus: Prometheus, run: Run) -> None:
        queries = panel_queries(namespace=space.name, cprjob=".*", window=WINDOW)
        assert len(queries) > 20
        run.wait("has an AUC", lambda status: status.get("progress", {}).get("auc") is not None, within_s=240)
        unanswered = set(queries)

        def answered() -> bool:
            unanswered.difference_update([query for query in unanswered if prometheus.query(query)])
            return not unanswered

        try:
            until("every query has an answer", answered, within_s=90, every_s=2.0)
        except TimeoutError:
            raise AssertionError("\n".join(sorted(unanswered))) from None

    def test_series_of_jobs_have_the_namespace_of_the_job_and_those_of_pods_their_member(
        self, space: Space, prometheus: Prometheus, run: Run
    ) -> None:
        (phase,) = prometheus.wait_for('max by (namespace, cprjob) (cprjob_phase{cprjob="watched"})')
        assert phase["metric"] == {"namespace": space.name, "cprjob": "watched"}
        shards = prometheus.wait_for(f'sum by (cprjob, index) (cprjob_shard_ready{{namespace="{space.name}"}} == 1)')
        assert {(each["metric"]["cprjob"], each["metric"]["index"]) for each in shards} >= {("watched", "1")}
        assert prometheus.query('{__name__=~"cprjob_.+", exported_namespace!=""}') == []
        for name, chosen in variable_queries().items():
            values = prometheus.api(f"label/{name}/values", **{"match[]": chosen})
            assert {"namespace": space.name, "cprjob": "watched"}[name] in values

    def test_alerts_are_evaluated_and_one_fires_for_the_failed_job(
        self, space: Space, prometheus: Prometheus, run: Run
    ) -> None:
        failed = f'ALERTS{{alertname="CPRJobFailed", namespace="{space.name}", alertstate="firing"}}'
        assert [each["metric"]["cprjob"] for each in prometheus.wait_for(failed)] == ["wrong"]
        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        assert [(rule["name"], rule["health"]) for rule in rules if rule["health"] != "ok"] == []
        assert len(rules) > 8

"""The ground the other tests stand on: nodes, pods, the object store, and that faults are what they claim to be."""

import pytest

from cluster.harness import Cluster, Space, sleeper


class TestHarness:
    def test_three_nodes_are_ready(self, cluster: Cluster) -> None:
        assert all(cluster.nodes.reader.ready(cluster.nodes.name(number)) for number in (1, 2, 3))

    def test_a_pod_of_the_trainer_image_has_torch_and_starts(self, space: Space) -> None:
        space.apply(sleeper("torch", script="import torch; print(torch.ones(2).sum())"))
        pod = space.wait_pod("torch", "ended", lambda p: p.phase in {"Succeeded", "Failed"})
        assert (pod.exit_code, space.logs("torch").strip()) == (0, "tensor(2.)")

    @pytest.mark.parametrize("module", ["kopf", "kubernetes", "pydantic"])
    def test_the_trainer_image_holds_nothing_of_the_operator(self, space: Space, module: str) -> None:
        script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is not None)"
        space.apply(sleeper(module, script=script))
        assert space.wait_pod(module, "ended", lambda p: p.exit_code is not None).exit_code == 0

    def test_the_store_keeps_and_loses_objects(self, cluster: Cluster) -> None:
        store = cluster.store
        store.put("harness/a", b"abc")
        store.put("harness/b", b"d")
        assert store.keys("harness/") == ("harness/a", "harness/b")
        store.corrupt("harness/a")
        harmed = store.get("harness/a")
        assert len(harmed) == 3
        assert harmed != b"abc"
        assert store.delete("harness/") == 2
        assert store.keys("harness/") == ()

    def test_pods_reach_the_store_by_name_with_their_namespace_s_credentials(self, space: Space) -> None:
        script = (
            "import os; from minio import Minio; "
            "m = Minio('minio.cprjob-store:9000', os.environ['A'], os.environ['S'], secure=False); "
            "print(m.bucket_exists('cprjob'))"
        )
        manifest = sleeper("store", script=script)
        keys = (("A", "accessKey"), ("S", "secretKey"))
        manifest["spec"]["containers"][0]["env"] = [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": "minio-credentials", "key": key}}}
            for name, key in keys
        ]
        space.apply(manifest)
        space.wait_pod("store", "ended", lambda p: p.exit_code is not None)
        assert space.logs("store").strip() == "True"

    def test_a_killed_process_ends_with_137_and_a_stopped_one_stays(self, cluster: Cluster, space: Space) -> None:
        space.apply(sleeper("victim"))
        pod = space.wait_pod("victim", "running", lambda p: p.phase == "Running")
        with pytest.raises(RuntimeError, match="0 children"):
            cluster.nodes.kill_child(pod)
        cluster.nodes.signal(pod, "STOP")
        state = "print(open('/proc/1/stat').read().split()[2])"
        assert space.exec("victim", "python3", "-c", state).strip() == "T"
        cluster.nodes.signal(pod, "KILL")
        assert space.wait_pod("victim", "ended", lambda p: p.exit_code is not None).exit_code == 137

    def test_an_evicted_pod_is_told_and_goes(self, space: Space) -> None:
        pod = sleeper("evicted")
        pod["spec"]["terminationGracePeriodSeconds"] = 10  # it is looked at while it goes
        space.apply(pod)
        space.wait_pod("evicted", "running", lambda p: p.phase == "Running")
        space.evict_pod("evicted")
        reasons = space.wait_pod("evicted", "deleting", lambda p: p.deleting).raw["status"]["conditions"]
        assert any(c["type"] == "DisruptionTarget" and c["reason"] == "EvictionByEvictionAPI" for c in reasons)


class TestNodeFaults:
    def test_a_cut_node_is_lost_and_comes_back_with_its_pod(self, cluster: Cluster, space: Space) -> None:
        space.apply(sleeper("islander", node=cluster.nodes.name(2)))
        before = space.wait_pod("islander", "running", lambda p: p.phase == "Running")
        cluster.nodes.cut(2)
        cluster.nodes.wait_ready(2, ready=False)
        cluster.nodes.join(2)
        cluster.nodes.wait_ready(2)
        after = space.wait_pod("islander", "ready again", lambda p: p.ready)
        assert (after.uid, after.container_id) == (before.uid, before.container_id)

    def test_a_node_without_power_takes_its_processes_with_it(self, cluster: Cluster, space: Space) -> None:
        space.apply(sleeper("powered", node=cluster.nodes.name(3)))
        space.wait_pod("powered", "running", lambda p: p.phase == "Running")
        cluster.nodes.kill(3)
        cluster.nodes.wait_ready(3, ready=False)
        cluster.nodes.start(3)
        cluster.nodes.wait_ready(3)
        pod = space.wait_pod("powered", "ended", lambda p: p.phase in {"Failed", "Succeeded"}, within_s=60)
        assert pod.exit_code != 0

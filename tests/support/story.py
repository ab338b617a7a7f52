"""What happens in scenarios: triggers, which look at the cluster, and actions, which strike it."""

from __future__ import annotations

from support.driver import Action, Trigger
from support.fake_cluster import FakeCluster


def trained(samples: int) -> Trigger:
    """All trainers' common position has passed this many samples."""
    return lambda cluster: any(
        (t.samples or 0) >= samples for plane in cluster.planes.values() for t in plane.trainers.values()
    )


def phase(name: str) -> Trigger:
    return lambda cluster: cluster.jobs["default", "job"].status.get("phase") == name


def meeting(cluster: FakeCluster) -> bool:
    """The operator has asked all trainers to meet."""
    return bool(cluster.jobs["default", "job"].status.get("meeting"))


def after(seconds: float) -> Trigger:
    """So long after it was first asked."""
    since: list[float] = []

    def over(cluster: FakeCluster) -> bool:
        since.append(cluster.now)
        return cluster.now >= since[0] + seconds

    return over


def both(*actions: Action) -> Action:
    def act(cluster: FakeCluster) -> None:
        for action in actions:
            action(cluster)

    return act


def kill(role: str, index: int) -> Action:
    return lambda cluster: cluster.kill(role, index)


def kill_spares(cluster: FakeCluster) -> None:
    for pod in cluster.spares():
        cluster.kill_pod(pod.name)


def suspend(*, value: bool) -> Action:
    return lambda cluster: cluster.set_spec("job", suspend=value)


def resume_with(shards: int) -> Action:
    """Another number of shards, and then no longer suspended."""

    def act(cluster: FakeCluster) -> None:
        cluster.set_spec("job", shards={"replicas": shards})
        cluster.set_spec("job", suspend=False)

    return act


def scale(trainers: int) -> Action:
    """Another number of trainers, while the job trains."""

    def act(cluster: FakeCluster) -> None:
        before = cluster.jobs["default", "job"].spec["trainers"]
        cluster.set_spec("job", trainers={**before, "replicas": trainers})

    return act


def damage_save(index: int) -> Action:
    """The newest save of a shard does not verify; nor does the anchor that it is part of."""

    def act(cluster: FakeCluster) -> None:
        plane = cluster.plane()
        saves = [(g, s) for (g, i), line in plane.store.shards.items() if i == index for s in line]
        if saves:
            generation, save = max(saves, key=lambda each: (each[0], each[1].samples))
            plane.store.damaged.add(save.key)
            plane.store.damaged |= {
                a.key for a in plane.store.anchors if (a.generation, a.samples) == (generation, save.samples)
            }

    return act


def damage_anchor(cluster: FakeCluster) -> None:
    """The dense state of the newest anchor does not verify."""
    plane = cluster.plane()
    plane.store.damaged |= {anchor.key for anchor in plane.store.anchors[-1:]}


def quota(value: int | None) -> Action:
    return lambda cluster: setattr(cluster, "quota", value)


def restoring(index: int) -> Trigger:
    """A process that restores this shard runs."""
    return lambda c: any(
        s.roster.index == index and s.roster.incarnation > 1 and s.ready_at is not None and s.generation == 0
        for s in c.plane().shards.values()
    )


def leader_ended(c: FakeCluster) -> bool:
    """The leader has ended well."""
    return any(pod.view().role == "trainer" and pod.phase == "Succeeded" for pod in c.pods.values())


def runs(index: int) -> Trigger:
    """The shard's process runs, and the operator has seen its pod."""

    def runs(c: FakeCluster) -> bool:
        seen = any(s["uid"] and s["index"] == index for s in c.jobs["default", "job"].status.get("shards", ()))
        return seen and c.member("shard", index).phase == "Running"

    return runs


def reapply(cluster: FakeCluster) -> None:
    job = cluster.jobs.pop(("default", "job"))
    cluster.collect_garbage(job.uid)
    cluster.add_job("job", job.spec, uid="abcdef00-1111")


def everybody(c: FakeCluster) -> None:
    for name in [*c.plane().shards, *c.plane().trainers]:
        pod = c.pods[name].view()
        c.kill(pod.role, pod.index)

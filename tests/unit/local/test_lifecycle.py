"""Pods of local mode live and die as a kubelet's do."""

from __future__ import annotations

import asyncio
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cpr_contract import env
from cpr_operator.cli import run
from cpr_operator.cli.console import SafeConsole
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.protocol import PodPatch, UnavailableError
from cpr_operator.cluster.views import JobView, PodView
from support.benches import NAMESPACE, document, pod_manifest

pytestmark = pytest.mark.dist

#: Prints its folder and identity, then waits for a signal.
DUTIFUL = """
import os, pathlib, signal, sys, time
def end(*_):
    pathlib.Path(os.environ["CPR_TERMINATION_FILE"]).write_text("the message")
    sys.exit(10)
signal.signal(signal.SIGTERM, end)
print(os.environ["CPR_ADDRESS"], os.environ["CPR_PORT_BASE"], flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
#: The file with the niceness of a session, where the kernel has it: `/autogroup-7 nice 0`.
AUTOGROUPS = [path for path in ("/proc/self/autogroup",) if Path(path).exists()]
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    made = LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={"GIVEN": "yes"})
    yield made
    await made.close()


def manifest(job: JobView, program: str, **spec: Any) -> dict[str, Any]:
    pod = pod_manifest(job)
    main = pod["spec"]["containers"][0]
    main["command"] = [sys.executable, "-u", "-c", program]
    main["env"] = [
        {"name": env.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": env.PORT_BASE, "value": "7070"},
        {"name": env.TERMINATION_FILE, "value": env.TERMINATION_MOUNT},
        *spec.pop("env", ()),
    ]
    main["volumeMounts"] = spec.pop("volumeMounts", [])
    pod["spec"] |= spec
    return pod


async def until(found: Callable[[], Any]) -> None:
    """Poll what cannot be awaited: files, and processes that are not our children."""
    while not found():  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.02)


async def until_pod(cluster: LocalCluster, job: JobView, condition: Callable[[PodView], bool]) -> PodView:
    while True:
        for pod in await cluster.list_pods(job):
            if condition(pod):
                return pod
        await asyncio.sleep(0.02)


def shown(cluster: LocalCluster, job: JobView) -> list[PodView]:
    """The views of a job's pods from now on, at each change. The end of a deleted one is not shown for long."""
    seen: list[PodView] = []
    looks: list[asyncio.Task[None]] = []

    async def look() -> None:
        seen.extend(await cluster.list_pods(job))

    cluster.subscribe(lambda: looks.append(asyncio.create_task(look())))
    return seen


async def until_deleted(cluster: LocalCluster, job: JobView) -> None:
    while await cluster.list_pods(job):  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.02)


def log(tmp_path: Path, pod: PodView) -> str:
    path = tmp_path / "pods" / pod.name / "log.txt"
    return path.read_text() if path.exists() else ""


def ended(pod: PodView) -> bool:
    return pod.phase in {"Succeeded", "Failed"}


async def test_a_running_pod_has_an_address_and_ports_of_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.create_job(document("ports"))
    first = manifest(job, DUTIFUL)
    second = manifest(job, DUTIFUL)
    second["metadata"]["name"] = "second"
    for each in (first, second):
        assert (await cluster.create_pod(each)).host == ""
    pods = await cluster.list_pods(job)
    await until(lambda: all(log(tmp_path, pod).endswith("\n") for pod in pods))
    assert {log(tmp_path, pod) for pod in pods} == {f"127.0.0.1 {pod.port_base}\n" for pod in pods}
    assert abs(pods[0].port_base - pods[1].port_base) >= 3


@pytest.mark.parametrize(("role", "yields"), [(env.ROLE_TRAINER, 0), (env.ROLE_SHARD, 0), (env.ROLE_PUBLISHER, 10)])
async def test_publisher_yields_the_processors_to_members(
    cluster: LocalCluster, tmp_path: Path, role: str, yields: int
) -> None:
    job = cluster.create_job(document("nice"))
    pod = manifest(
        job, f"import os, pathlib; print(os.nice(0), *(pathlib.Path(each).read_text() for each in {AUTOGROUPS!r}))"
    )
    pod["metadata"]["labels"][env.LABEL_ROLE] = role
    await cluster.create_pod(pod)
    niceness, *of_autogroup = log(tmp_path, await until_pod(cluster, job, ended)).split()
    assert int(niceness) == min(os.nice(0) + yields, 19)  # the most that there is
    assert of_autogroup[2:] == [str(yields)] * len(AUTOGROUPS)


async def test_run_ends_with_the_status_of_its_job(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "POLL_S", 3600.0)
    job, shown = cluster.create_job(document("short")), io.StringIO()
    following = asyncio.create_task(run.RunMonitor(cluster, job, (), SafeConsole(file=shown)).follow())
    await until(shown.getvalue)  # it waits for a change now
    await cluster.write_status(await cluster.get_job(NAMESPACE, job.name), {"phase": "Succeeded"})
    assert (await following).phase == "Succeeded"


async def test_exit_code_and_termination_message_are_kept_until_the_pod_is_deleted(cluster: LocalCluster) -> None:
    job = cluster.create_job(document("exits"))
    program = "import os, sys; open(os.environ['CPR_TERMINATION_FILE'], 'w').write('why'); sys.exit(21)"
    await cluster.create_pod(manifest(job, program))
    pod = await until_pod(cluster, job, ended)
    assert pod.container is not None
    assert (pod.phase, pod.container.exit_code, pod.container.message) == ("Failed", 21, "why")
    await cluster.delete_pod(NAMESPACE, pod.name, pod.uid, None)
    assert await cluster.list_pods(job) == ()


@pytest.mark.parametrize(
    ("program", "grace_s", "end"),
    [pytest.param(DUTIFUL, 30, (10, "the message"), id="dutiful"), pytest.param(DEAF, 1, (137, ""), id="deaf")],
)
async def test_deleted_pod_ends_within_its_grace_and_is_shown_until_then(
    cluster: LocalCluster, tmp_path: Path, program: str, grace_s: int, end: tuple[int, str]
) -> None:
    job = cluster.create_job(document("deleted"))
    created = await cluster.create_pod(manifest(job, program, terminationGracePeriodSeconds=grace_s))
    await until(lambda: log(tmp_path, created))
    seen = shown(cluster, job)
    await cluster.delete_pod(NAMESPACE, created.name, created.uid, None)
    going = (await cluster.list_pods(job))[0]
    assert going.deleting_until is not None
    await until(lambda: any(map(ended, seen)))
    container = next(filter(ended, seen)).container
    assert container is not None
    assert (container.exit_code, container.message) == end
    await until_deleted(cluster, job)


async def test_signal_may_reach_the_process_that_a_supervisor_forked(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.create_job(document("stored"))
    program = (
        "import os, time\n"
        "child = os.fork()\n"
        "if not child: time.sleep(60)\n"
        "print('forked', flush=True)\n"
        "print('child ended with', os.waitpid(child, 0)[1], flush=True)\n"
        "time.sleep(60)\n"
    )
    created = await cluster.create_pod(manifest(job, program, env=[{"name": env.KEEPER, "value": "1"}]))
    await until(lambda: "forked" in log(tmp_path, created))
    assert cluster.signal_pod(NAMESPACE, created.name, signal.SIGKILL, whole=False)
    await until(lambda: f"child ended with {signal.SIGKILL.value}" in log(tmp_path, created))
    assert not cluster.signal_pod(NAMESPACE, created.name, signal.SIGKILL, whole=False), "no other one was forked"
    assert cluster.signal_pod(NAMESPACE, created.name, signal.SIGKILL)
    pod = await until_pod(cluster, job, ended)
    assert pod.container is not None
    assert pod.container.exit_code == 137


async def test_a_roster_follows_its_annotation(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.create_job(document("roster"))
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{env.ANNOTATION_ROSTER}']"}, "path": "roster.json"}
    program = "import os, time; p = os.environ['CPR_ROSTER_FILE']\nwhile 1: print(open(p).read()); time.sleep(0.02)"
    pod = manifest(
        job,
        program,
        env=[{"name": env.ROSTER_FILE, "value": f"{env.ROSTER_DIR}/roster.json"}],
        volumes=[{"name": "roster", "downwardAPI": {"items": [field]}}],
        volumeMounts=[{"name": "roster", "mountPath": env.ROSTER_DIR}],
    )
    pod["metadata"]["annotations"][env.ANNOTATION_ROSTER] = "first"
    created = await cluster.create_pod(pod)
    await until(lambda: "first" in log(tmp_path, created))
    await cluster.patch_pod(NAMESPACE, PodPatch(created.name, created.uid, {env.ANNOTATION_ROSTER: "second"}))
    await until(lambda: "second" in log(tmp_path, created))


async def test_pod_waits_for_its_secret_with_a_reason(cluster: LocalCluster) -> None:
    job = cluster.create_job(document("secret"))
    pod = manifest(
        job,
        "import os; print(open(os.environ['KEY']).read())",
        env=[{"name": "KEY", "value": "/etc/key/key"}],
        volumes=[{"name": "key", "secret": {"secretName": "late"}}],
        volumeMounts=[{"name": "key", "mountPath": "/etc/key"}],
    )
    await cluster.create_pod(pod)
    waiting = await until_pod(cluster, job, lambda each: each.container is not None)
    assert waiting.container is not None
    assert waiting.container.reason == "CreateContainerConfigError"
    assert "late" in waiting.container.message
    meta = {"name": "late", "namespace": NAMESPACE}
    await cluster.create_secret({"kind": "Secret", "metadata": meta, "data": {"key": "c2VjcmV0"}})
    assert (await until_pod(cluster, job, ended)).phase == "Succeeded"


async def test_pods_of_a_deleted_job_go(cluster: LocalCluster, tmp_path: Path) -> None:
    job = cluster.create_job(document("orphans"))
    created = await cluster.create_pod(manifest(job, DUTIFUL))
    await until(lambda: log(tmp_path, created))
    await cluster.delete_job(job)
    await until_deleted(cluster, job)


async def test_processes_end_with_the_cluster(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={})
    job = cluster.create_job(document("survivors"))
    created = await cluster.create_pod(manifest(job, PARENT))
    await until_pod(cluster, job, lambda pod: pod.phase == "Running")
    await until(lambda: len(members(tmp_path, created)) >= 2)
    await cluster.close()
    await until(lambda: members(tmp_path, created) == [])


async def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    program = f"""
import asyncio, random, time, sys, pathlib
from cpr_operator.cluster.local.pod_process import PodProcess
async def main():
    await PodProcess.start(({sys.executable!r}, "-c", "import time; time.sleep(600)", "marked-{tmp_path.name}"), {{}},
                           pathlib.Path({str(tmp_path / "log")!r}))
    print("started", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"started\n"
    await until(lambda: len(commands(f"marked-{tmp_path.name}")) >= 1)
    parent.kill()
    await parent.wait()
    await until(lambda: commands(f"marked-{tmp_path.name}") == [])


async def test_one_process_works_in_a_folder(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="another process"):
        LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={})


async def test_a_later_cluster_finds_the_jobs_and_no_pods(tmp_path: Path) -> None:
    first = LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={})
    job = first.create_job(document("stored"))
    written = await first.write_status(job, {"phase": "Running"})
    await first.create_pod(manifest(job, DUTIFUL))
    await first.close()
    later = LocalCluster(tmp_path, clock=time.time, rng=random.Random(1), environment={})
    assert await later.get_job(NAMESPACE, "stored") == written
    assert await later.list_pods(written) == ()
    newer = later.change_spec(NAMESPACE, "stored", {"suspend": True})
    assert int(newer.resource_version) > int(written.resource_version)
    await later.close()


def members(tmp_path: Path, pod: PodView) -> list[int]:
    """Processes with the pod's log as standard output."""
    path = str(tmp_path / "pods" / pod.name / "log.txt")
    return [pid for pid in processes() if output_of(pid) == path]


def commands(word: str) -> list[int]:
    """Processes with this word among their own arguments, not within a program text."""
    return [pid for pid in processes() if word in arguments_of(pid)]


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def output_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []

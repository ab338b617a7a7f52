"""A namespace of one class of tests: its jobs, their pods, and what to print when a test fails."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kubernetes.client.exceptions import ApiException

from cluster.harness import store
from cluster.harness.kubectl import Kubectl, KubectlError, Object, Reader
from cluster.harness.pods import Pod
from cluster.harness.waiting import until

Role = Literal["shard", "trainer", "publisher"]


@dataclass(frozen=True)
class Space:
    """One namespace under the restricted profile, with the object store's credentials in it."""

    name: str
    all: Kubectl
    reader: Reader

    @classmethod
    def create(cls, name: str, kubectl: Kubectl, reader: Reader) -> "Space":
        """Make the namespace."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted", "cprjob.io/test": "true"}
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        secret = kubectl.get("-n", store.NAMESPACE, "secret", store.SECRET)
        kubectl.apply(secret | {"metadata": {"name": store.SECRET, "namespace": name}})
        account = ("-n", name, "get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
        until(
            f"namespace {name} has its service account", lambda: bool(kubectl(*account)), 30
        )  # without it pods are refused
        return cls(name, kubectl, reader)

    def leave(self) -> None:
        """Have the namespace deleted with all in it, and wait for nothing."""
        self.all("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")

    def remove(self, within_s: float = 60) -> None:
        """Delete the namespace and wait until it is gone. Finalizers that no operator serves are taken off."""
        self.leave()
        try:
            until(f"namespace {self.name} is gone", self._deleted, within_s, every_s=0.5)
        except TimeoutError:
            for job in self.kubectl("get", "cprjobs", "-o", "name", check=False).split():
                self.kubectl("patch", job, "--type=merge", "-p", '{"metadata":{"finalizers":null}}', check=False)
            self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", check=False)
            until(f"namespace {self.name} is gone", self._deleted, within_s, every_s=0.5)

    def _deleted(self) -> bool:
        return not self.all("get", "namespace", self.name, "--ignore-not-found", "-o", "name").strip()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl in this namespace."""
        return self.all("-n", self.name, *arguments, stdin=stdin, check=check)

    def apply(self, manifest: Object | Path) -> None:
        """Apply a manifest, or a file of them, in this namespace."""
        self.all.apply(manifest, "-n", self.name)

    def patch(self, job: str, change: str) -> None:
        """Merge a change (JSON) into a CPRJob."""
        self.kubectl("patch", "cprjob", job, "--type=merge", "-p", change)

    def editor(self, folder: Path) -> Path:
        """Make a service account that has the role `edit` here and no other right; return its kubeconfig."""
        name = "editor"
        self.kubectl("create", "serviceaccount", name)
        self.kubectl("create", "rolebinding", name, "--clusterrole=edit", f"--serviceaccount={self.name}:{name}")
        config = json.loads(self.all("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        token = self.kubectl("create", "token", name).strip()
        for user in config["users"]:
            user["user"] = {"token": token}
        for context in config["contexts"]:
            context["context"]["namespace"] = self.name
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config), "utf-8")

        def may(*what: str) -> bool:
            account = f"--as=system:serviceaccount:{self.name}:{name}"
            return "yes" in self.kubectl("auth", "can-i", *what, account, check=False).split()

        until("the role is in force", lambda: may("create", "cprjobs"), within_s=60)
        assert not may("list", "nodes")
        return path

    # --- jobs ---

    def job(self, name: str) -> Object:
        """Return a CPRJob."""
        return self.reader.job(self.name, name)

    def wait_job(self, name: str, what: str, holds: Callable[[Object], bool], within_s: float = 60) -> Object:
        """Wait until the predicate holds for the CPRJob; return the job as it was then."""

        def probe() -> Object | None:
            try:
                job = self.job(name)
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
            return job if holds(job) else None

        return until(f"CPRJob {self.name}/{name}: {what}", probe, within_s)

    def wait_condition(self, name: str, kind: str, status: str = "True", within_s: float = 60) -> Object:
        """Wait until a condition of the CPRJob has the status; return the condition."""
        job = self.wait_job(name, f"{kind}={status}", lambda j: condition(j, kind).get("status") == status, within_s)
        return condition(job, kind)

    def events(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return (reason, message) of the CPRJob's events, oldest first."""
        listed = self.all.get("-n", self.name, "events", "--sort-by=.metadata.creationTimestamp")["items"]
        ours = (e for e in listed if (e["involvedObject"]["kind"], e["involvedObject"].get("name")) == ("CPRJob", name))
        return tuple((e.get("reason", ""), e.get("message", "")) for e in ours)

    def wait_for_event(self, name: str, reason: str, within_s: float = 120.0) -> tuple[str, ...]:
        """Return the messages of the CPRJob's events of a kind, once there is one: they come after the status."""

        def probe() -> tuple[str, ...] | None:
            return tuple(message for found, message in self.events(name) if found == reason) or None

        return until(f"an event {reason} of {name}", probe, within_s)

    # --- pods ---

    def pod(self, name: str) -> Pod | None:
        """Return a pod by its name."""
        return next((pod for pod in self.pods() if pod.name == name), None)

    def pods(
        self, job: str | None = None, role: Role | None = None, index: int | None = None, incarnation: int | None = None
    ) -> tuple[Pod, ...]:
        """Return the pods, narrowed by what is given, ordered by role, index and incarnation."""
        labels = {"job": job, "role": role, "index": index, "incarnation": incarnation}
        selector = ",".join(f"cprjob.io/{key}={value}" for key, value in labels.items() if value is not None)
        found = map(Pod.of, self.reader.pods(self.name, selector))
        return tuple(sorted(found, key=lambda p: (p.role, p.index, p.incarnation, p.name)))

    def delete_pod(self, name: str, *, force: bool = False) -> None:
        """Delete a pod; by force its object goes at once, and its process still has about a second."""
        self.kubectl("delete", "pod", name, "--wait=false", *(("--force", "--grace-period=0") if force else ()))

    def evict_pod(self, name: str) -> None:
        """Evict a pod as a drain would: budgets are asked, and its own grace holds."""
        body = (
            f'{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{name}","namespace":"{self.name}"}}}}'
        )
        self.all("create", "--raw", f"/api/v1/namespaces/{self.name}/pods/{name}/eviction", "-f", "-", stdin=body)

    def report(self, pod: Pod) -> Object | None:
        """Return what a pod reports of itself, None if it does not answer."""
        return self.reader.report(self.name, pod.name) if pod.ip else None

    def logs(self, pod: str, *, previous: bool = False, lines: int = -1) -> str:
        """Return what a pod's containers printed."""
        return self.kubectl(
            "logs", pod, "--all-containers", f"--tail={lines}", *(("--previous",) if previous else ()), check=False
        )

    # --- when a test fails ---

    def diagnostics(self) -> str:
        """Return all that explains a failure here: jobs, events, pods, rosters, reports and logs."""
        parts = [
            self._part("jobs", "get", "cprjobs", "-o", "yaml"),
            self._part("events", "get", "events", "--sort-by=.metadata.creationTimestamp"),
            self._part("pods", "get", "pods", "-o", "wide", "--show-labels"),
            self._part("nodes", "get", "nodes"),
        ]
        try:
            pods = self.pods()
        except (ApiException, OSError) as error:
            return "\n".join([*parts, f"pods cannot be listed: {error}"])
        parts += [f"=== roster of {pod.name}\n{pod.roster}" for pod in pods if pod.roster]
        parts += [f"=== report of {pod.name}\n{json.dumps(report)}" for pod in pods if (report := self.report(pod))]
        parts += [f"=== log of {pod.name}\n{self.logs(pod.name, lines=80)}" for pod in pods]
        restarted = (p for p in pods if any(s["restartCount"] for s in p.raw["status"].get("containerStatuses", [])))
        parts += [
            f"=== log of {pod.name} before its restart\n{self.logs(pod.name, previous=True, lines=80)}"
            for pod in restarted
        ]
        return "\n".join(parts)

    def _part(self, title: str, *arguments: str) -> str:
        try:
            return f"=== {title}\n{self.kubectl(*arguments, check=False)}"
        except (KubectlError, TimeoutError, OSError) as error:
            return f"=== {title}: {error}"


def condition(job: Object, kind: str) -> Object:
    """Return a condition of a CPRJob; empty if it has none of that type."""
    conditions: list[Object] = job.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})

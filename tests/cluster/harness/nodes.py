"""Faults of nodes and of processes on them. `heal` undoes them; the `space` fixture calls it after each namespace."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cluster.harness.kubectl import Kubectl, Reader
from cluster.harness.pods import Pod
from cluster.harness.waiting import until

Signal = Literal["KILL", "STOP", "CONT", "TERM"]
Daemon = Literal["kubelet", "containerd", "proxy", "dns"]


@dataclass(frozen=True)
class Nodes:
    """The nodes by number: 1 is stable (the operator and the object store run there), faults belong to the others."""

    scripts: Path
    backend: Literal["bare", "kind"]
    kubectl: Kubectl
    reader: Reader
    count: int = 3
    _harmed: set[int] = field(default_factory=set)

    def name(self, number: int) -> str:
        """Return the name of a node by its number."""
        if self.backend == "bare":
            return f"node{number}"
        return "cprjob-test-worker" + (str(number) if number > 1 else "")

    def number(self, name: str) -> int:
        """Return the number of a node by its name."""
        return next(n for n in range(1, self.count + 1) if self.name(n) == name)

    def cut(self, number: int) -> None:
        """Pull the network cable: the node and its pods live on, unreachable."""
        self._node("cut", number)

    def join(self, number: int) -> None:
        """Put the cable back."""
        self._node("join", number)

    def kill(self, number: int) -> None:
        """Pull the plug: kubelet, runtime and all containers die at once."""
        self._node("kill", number)

    def start(self, number: int) -> None:
        """Power on."""
        self._node("start", number)

    @contextmanager
    def blocked(self, deaf: int, mute: int) -> Iterator[None]:
        """Cut the way from another node and its pods to this one, for a while: a one-way cut."""
        self._node("block", deaf, mute)
        try:
            yield
        finally:
            self._node("unblock", deaf, mute)

    @contextmanager
    def fault(self, inject: str, undo: str, number: int, *arguments: str | int) -> Iterator[None]:
        """Have a fault of `node.sh` on a node for a while, which another of its commands undoes; not on kind."""
        self._harmed.add(number)
        self._run(inject, str(number), *map(str, arguments))
        try:
            yield
        finally:
            self._run(undo, str(number), *map(str, arguments))

    @contextmanager
    def halted(self, number: int, *daemons: Daemon) -> Iterator[None]:
        """Have daemons of a node dead for a while; its containers live on. Not on kind."""
        self._harmed.add(number)
        for daemon in daemons:
            self._run("halt", str(number), daemon)
        try:
            yield
        finally:
            self.start(number)

    def wait_ready(self, number: int, *, ready: bool = True, within_s: float = 60) -> None:
        """Wait until the node is Ready, or no longer is."""
        name = self.name(number)
        until(f"{name} {'is' if ready else 'is not'} Ready", lambda: self.reader.ready(name) == ready, within_s)

    def heal(self) -> None:
        """Undo all faults of nodes, and uncordon: the next test finds three Ready nodes."""
        harmed = sorted(self._harmed)
        for number in harmed:
            self.join(number)
            self.start(number)
            if self.backend == "bare":
                self._run("calm", str(number))
            self.kubectl("uncordon", self.name(number))
        for number in range(1, self.count + 1):
            self.wait_ready(number)
        self._harmed.clear()

    @contextmanager
    def cordoned(self) -> Iterator[None]:
        """Let no node take a new pod for a while."""
        names = [self.name(number) for number in range(1, self.count + 1)]
        self._harmed.update(range(1, self.count + 1))
        self.kubectl("cordon", *names)
        try:
            yield
        finally:
            self.kubectl("uncordon", *names)

    def drain(self, number: int, selector: str, within_s: float = 90) -> None:
        """Cordon the node and evict the pods that the selector finds, with their own grace. Uncordon is `heal`'s."""
        limit = f"--timeout={within_s:g}s"
        self._harmed.add(number)
        self.kubectl(
            "drain",
            self.name(number),
            "--pod-selector",
            selector,
            "--delete-emptydir-data",
            limit,
            timeout_s=within_s + 10,
        )

    @contextmanager
    def also_named(self, image: str, name: str) -> Iterator[None]:
        """Give an image that all nodes have a second name for a while, as containerd writes it."""
        for number in range(1, self.count + 1):
            self._run("ctr", str(number), "images", "tag", "--force", image, name)
        try:
            yield
        finally:
            for number in range(1, self.count + 1):
                self._run("ctr", str(number), "images", "rm", name)

    def runs(self, pod: Pod) -> bool:
        """Return whether a pod's container runs, by its node."""
        tasks = map(str.split, self._run("ctr", str(self.number(pod.node)), "tasks", "ls").splitlines())
        return any((task[0], task[2]) == (pod.container_id, "RUNNING") for task in tasks)

    def signal(self, pod: Pod, signal: Signal) -> None:
        """Send a signal to all processes of a pod's container from its node: KILL leaves no grace."""
        number = str(self.number(pod.node))
        self._run("ctr", number, "tasks", "kill", "--all", "--signal", f"SIG{signal}", pod.container_id)

    def kill_child(self, pod: Pod) -> None:
        """Kill the one child of the first process of a pod's container: the process that a supervisor began."""
        self._run("kill-child", str(self.number(pod.node)), pod.container_id)

    @contextmanager
    def frozen_thread(self, pod: Pod, thread: int) -> Iterator[None]:
        """Hold one thread of the process that works in a pod, by its number; 0 is the main one. Not on kind."""
        node = str(self.number(pod.node))
        self._run("freeze-thread", node, pod.container_id, str(thread))
        try:
            yield
        finally:
            self._run("thaw-thread", node, pod.container_id)

    def throttled(self, pod: Pod) -> AbstractContextManager[None]:
        """Let a pod's processes run a fifth of the time. Not on kind."""
        return self.fault("throttle", "unthrottle", self.number(pod.node), pod.container_id)

    def exhaust(self, pod: Pod) -> None:
        """Fill the memory of a pod's container until the kernel kills a process in it. Not on kind."""
        self._run("oom", str(self.number(pod.node)), pod.container_id)

    def _node(self, fault: str, *numbers: int) -> None:
        self._harmed.update(numbers)
        self._run(fault, *map(str, numbers))

    def _run(self, *arguments: str) -> str:
        script = {"bare": "node.sh", "kind": "kind.sh"}[self.backend]
        done = subprocess.run(
            [self.scripts / script, *arguments], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{script} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

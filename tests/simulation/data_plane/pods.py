"""A shard's pod: the real supervisor, and the real servers that it starts one after the other in the same memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.reports import SaveRef, ShardReport
from cpr_contract.roster import Peer, ShardRoster
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.memory import SharedMemory
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import Access, Environment, exit_code
from cpr_trainer.runtime.supervision import Supervisor
from cpr_trainer.shard import main
from cpr_trainer.shard.resume import ShardControlBlock
from simulation.data_plane.clock import Process
from simulation.data_plane.network import Listener, Port, close_all
from simulation.data_plane.signals import status_of
from simulation.data_plane.threads import Event
from support.shard_job import KEY

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster

NOWHERE = Path("/nonexistent")
#: Takes termination messages, which no kubelet reads: the cluster has the exit code.
DISCARDED = Path(os.devnull)


class ShardPod:
    """One incarnation of a shard. `code` is that of its end, None before; `lost`: its host is gone, silently."""

    def __init__(self, cluster: Cluster, roster: ShardRoster) -> None:
        job = cluster.workload.job
        self.cluster, self.roster = cluster, roster
        self.index, self.incarnation = roster.index, roster.incarnation
        self.host = f"shard-{self.index}-{self.incarnation}"
        self.code: int | None = None
        self.flushed: SaveRef | None = None
        self.lost = False
        self.server: Process | None = None
        self.shard: main._Shard | None = None
        self._stop: Event | None = None
        port = Port(cluster.network, (self.host, env.DEFAULT_PORT_BASE))
        self._listener = port.handle()
        size = main.largest_bytes(job, lambda sizes, memory: Arena.empty(job, *sizes, memory=memory))
        self._memory = SharedMemory(size)
        self.supervisor = cluster.scheduler.process(f"supervisor of {self.host}", self.host)
        self.supervisor.at_end.append(lambda _status: self._ended(-signal.SIGKILL))
        self._begin_server: Callable[[], int] = lambda: self._begin(port)
        cluster.scheduler.spawn(self.supervisor, self._keep)

    @property
    def peer(self) -> Peer:
        return Peer(self.index, self.incarnation, self.host, env.DEFAULT_PORT_BASE)

    @property
    def serving(self) -> main._Shard | None:
        """Return the running server, None before it has an identity."""
        alive = self.code is None and self.server is not None and not self.server.dead
        return self.shard if alive else None

    @property
    def report(self) -> ShardReport | None:
        """Return its present answer, None for none."""
        shard = self.serving
        return None if shard is None or shard.status.report.index < 0 else shard.status.report

    def give(self, roster: ShardRoster) -> None:
        """Give it a roster."""
        if roster.counters.roster > self.roster.counters.roster:
            self.roster = roster
            if self.serving is not None:
                self.serving.rosters.offer(to_json(roster).encode())

    def terminate(self, process: Process) -> None:
        """SIGTERM has come to a server."""
        if process is self.server and self._stop is not None:
            self._stop.set()

    def drain(self) -> None:
        """Ask it to end well."""
        self.cluster.kernel.send(self.supervisor, signal.SIGTERM)

    def kill_server(self) -> None:
        if self.server is not None:
            self.cluster.scheduler.kill(self.server)

    def kill(self) -> None:
        """Kill all that is in it."""
        self.kill_server()
        self.cluster.scheduler.kill(self.supervisor)

    def lose(self) -> None:
        """Cut its node off for good: it is never reached again."""
        self.lost = True
        self.cluster.network.cut_off(self.host)

    def _keep(self) -> None:
        job = self.cluster.workload.job
        control_block = ShardControlBlock.new(self._memory.view(), job)
        code = Supervisor(control_block, DISCARDED, job.silence_s, self._begin_server).run()
        assert code is not None
        self._ended(code)

    def _begin(self, port: Port) -> int:
        server = self.server = self.cluster.scheduler.process(f"server of {self.host}", self.host)
        self.cluster.kernel.adopt(self.supervisor, server)
        listener = port.handle()
        self._stop = Event(self.cluster.scheduler)
        server.at_end += [lambda _status: close_all(self.cluster.network, server), lambda _status: listener.close()]
        self.cluster.scheduler.spawn(server, lambda: self._serve(server, listener))
        return server.pid

    def _serve(self, server: Process, listener: Listener) -> None:
        job, memory = self.cluster.workload.job, self._memory.view()
        environment = Environment(
            job=job,
            roster_file=NOWHERE,
            key=KEY,
            address=self.host,
            port_base=env.DEFAULT_PORT_BASE,
            store_access=Access(),
            data_access=Access(),
            scratch_dir=NOWHERE,
            termination_file=DISCARDED,
            step_trace=None,
        )
        control_block = ShardControlBlock(memory, job)
        assert self._stop is not None
        shard = self.shard = main._Shard(environment, self._stop, control_block, memory, listener)  # type: ignore[arg-type]
        shard.rosters.offer(to_json(self.roster).encode())
        try:
            ending = shard.run()
            code, self.flushed = ending.code, ending.save
        except TrainerError as error:
            self.cluster.probes[f"a server ended with {error.reason}"] += 1
            code = exit_code(error)
        self.cluster.scheduler.kill(server, status_of(code))

    def _ended(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self._listener.close()
            self.kill()

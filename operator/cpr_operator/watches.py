"""kopf's watches: their settings, and the lists that the API server has answered.

kopf ends on some answers, for example a refused login or a lost resource, and is then restarted. It
is also restarted if it has not listed everything in time, because it looks for the CRD only at start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import orjson

from cpr_contract import env
from cpr_operator.api.cprjob_spec import API_VERSION, PLURAL
from cpr_operator.cluster.rate_limiter import backoff_s
from cpr_operator.cluster.watch_cache import Kind
from cpr_operator.desired import workload

logger = logging.getLogger(__name__)

#: Seconds after which the server ends a watch, and after which its connection counts as dead.
WATCH_S, WATCH_LIMIT_S = 300, 330
CONNECT_S = 5
#: Seconds after its last event for which kopf retains a task and the last version of an object.
IDLE_S = 0.1
REQUEST_S = 30
#: Objects in one page of a list.
PAGE = 500
#: Seconds until a failed request is retried, doubling from the first to the last.
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0
#: kopf is restarted if jobs and pods are not listed within this many seconds.
LISTED_S = 30.0
#: Seconds from the beginning of the last watch until the handlers should have handled all listed objects.
SHOWN_S = 0.2
#: The pause between two runs of kopf.
RESTART_S = 2.0
#: Seconds for kopf to stop. It waits 5 s itself for its tasks.
STOP_S = 8.0
#: Minimum seconds between two reads of the credentials, which follow a refused login.
LOGIN_S = 1.0


class EndlessBackoffs:
    """Seconds between the attempts of one request. They never run out, because kopf would then end."""

    def __iter__(self) -> Iterator[float]:
        return (backoff_s(retries, FIRST_RETRY_S, LAST_RETRY_S) for retries in itertools.count())


class FastJson(aiohttp.ClientResponse):
    """A response that kopf parses with orjson: with json the lists of a large cluster delay the operator's start."""

    async def json(self, **options: Any) -> Any:
        """See `aiohttp.ClientResponse`."""
        return await super().json(**{"loads": orjson.loads, **options})


class NoDiffs(kopf.DiffBaseStorage):
    """Disables differences between an object's versions: kopf copies each object for them, and raw events have none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """See `kopf.DiffBaseStorage`."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """See `kopf.DiffBaseStorage`."""
        return None

    def store(self, **_: Any) -> None:
        """See `kopf.DiffBaseStorage`."""


def make_settings() -> kopf.OperatorSettings:
    """Settings of kopf: every wait is bounded, and only our objects of the watched kinds are read."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffs()
    settings.scanning.disabled = True
    settings.queueing.idle_timeout = IDLE_S
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_LIMIT_S
    settings.watching.connect_timeout = CONNECT_S
    settings.watching.chunk_size = PAGE
    settings.watching.label_selectors["", "v1", "pods"] = env.LABEL_JOB
    settings.watching.label_selectors[workload.KUEUE, workload.VERSION, workload.PLURAL] = env.LABEL_JOB
    settings.networking.request_timeout = REQUEST_S
    settings.networking.connect_timeout = CONNECT_S
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = EndlessBackoffs()
    # With a timeout kopf would kill this process, which must outlive kopf.
    settings.process.ultimate_exiting_timeout = None
    return settings


class Lists:
    """The lists that an operator of these namespaces needs, without an answer (`missing`) or a watch (`unwatched`).

    kopf calls the handlers with the listed objects soon after the watch of that list has begun.
    """

    def __init__(self, namespaces: tuple[str, ...]) -> None:
        self._lists: dict[str, tuple[Kind, str]] = {}
        for namespace in namespaces or ("",):
            place = f"namespaces/{namespace}/" if namespace else ""
            self._lists[f"/apis/{API_VERSION}/{place}{PLURAL}"] = ("jobs", namespace)
            self._lists[f"/api/v1/{place}pods"] = ("pods", namespace)
        self.missing = set(self._lists)
        self.unwatched = set(self._lists)

    def answered(self, path: str) -> tuple[Kind, str] | None:
        """Record that the list at this URL path was answered. Returns its kind and namespace."""
        found = self._find(path)
        if found is None:
            return None
        self.missing.discard(found)
        return self._lists[found]

    def watched(self, path: str) -> bool:
        """Record that the watch at this URL path has begun. Returns True if it is the last one that was missing."""
        found = self._find(path)
        if found not in self.unwatched:
            return False
        self.unwatched.discard(found)
        return not self.unwatched

    def _find(self, path: str) -> str | None:
        # Only the end of the path is compared, because a proxy may add a prefix.
        return next((each for each in self._lists if path.endswith(each)), None)


class Watches:
    """Runs kopf over these namespaces (all if none is named) until `stop`.

    `make_registry` makes the handlers for each run of kopf. `listed` is called whenever jobs or pods of a
    namespace (empty: of all) are listed, because deletions since the previous list cause no events. `shown` is
    called when the handlers should have handled all listed objects, or after LISTED_S if that takes longer.
    `log_in` is called as kopf calls its login handlers. Use from one event loop.
    """

    def __init__(
        self,
        namespaces: tuple[str, ...],
        make_registry: Callable[[], kopf.OperatorRegistry],
        listed: Callable[[Kind, str], None],
        shown: Callable[[], None],
        log_in: Callable[..., kopf.ConnectionInfo | None] = kopf.login_via_client,
    ) -> None:
        self._namespaces = namespaces
        self._make_registry = make_registry
        self._listed = listed
        self._shown = shown
        self._log_in = log_in
        self._lists = Lists(namespaces)
        self._stopped = asyncio.Event()
        self._halt = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Return True once jobs and pods are listed in all namespaces."""
        return not self._lists.missing

    def stop(self) -> None:
        """Make `run` return."""
        self._stopped.set()
        self._halt.set()

    def restart(self) -> None:
        """Restart kopf, because it reads the API server's kinds only at its start."""
        self._halt.set()

    async def run(self) -> None:
        """Run kopf until `stop`, and restart it whenever it ends."""
        while not self._stopped.is_set():
            await self._watch()
            self._lists = Lists(self._namespaces)
            try:
                async with asyncio.timeout(RESTART_S):
                    await self._stopped.wait()
            except TimeoutError:
                logger.info("restarting the watches")

    async def _watch(self) -> None:
        """Run kopf once."""
        self._halt = asyncio.Event()
        registry = self._make_registry()
        self._add_login(registry)
        timer = asyncio.get_running_loop().call_later(LISTED_S, self._give_up)
        others, limit = frozenset(asyncio.all_tasks()), None
        try:
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=make_settings(),
                namespaces=self._namespaces,
                clusterwide=not self._namespaces,
                stop_flag=self._halt,
            )
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # One task has ended, so kopf cancels the others. A task that waits for a login can miss it: after STOP_S
            # all are cancelled again.
            async with asyncio.timeout(STOP_S) as limit:
                await kopf.run_tasks(tasks, ignored=others)
        except Exception as error:  # noqa: BLE001 -- of kopf or any library: none is fatal
            if limit is not None and limit.expired():
                logger.warning("the watches did not stop within %g s, and were cancelled", STOP_S)
            else:
                logger.warning("the watches ended: %s: %s", type(error).__name__, error)
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._shown()
        if self._lists.missing:
            lists = ", ".join(sorted(self._lists.missing))
            logger.error("not listed: %s; install the CRD, and let the operator's ServiceAccount list them", lists)
            self._halt.set()

    def _add_login(self, registry: kopf.OperatorRegistry) -> None:
        """Log in as kopf does, over a session that reports its responses to `_see`."""
        logins = 0

        @kopf.on.login(registry=registry)
        async def log_in(**kwargs: Any) -> kopf.AiohttpSession | None:
            nonlocal logins
            await asyncio.sleep(LOGIN_S if logins else 0)
            logins += 1
            info = self._log_in(**kwargs)
            return None if info is None else self._session(info)

    def _session(self, info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._see)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            trace_configs=[trace],
            response_class=FastJson,
        )
        return kopf.AiohttpSession(
            server=info.server, default_namespace=info.default_namespace, aiohttp_session=session
        )

    async def _see(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, seen: aiohttp.TraceRequestEndParams
    ) -> None:
        if not seen.response.ok or "continue" in seen.url.query:
            return
        if "watch" in seen.url.query:
            if self._lists.watched(seen.url.path):
                asyncio.get_running_loop().call_later(SHOWN_S, self._shown)
            return
        if (found := self._lists.answered(seen.url.path)) is not None:
            self._listed(*found)

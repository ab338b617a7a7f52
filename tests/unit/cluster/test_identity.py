"""The operator's identity: made once, read from its Secret afterwards, also by a replica that comes second."""

from __future__ import annotations

import asyncio
import base64
import random
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.certificates import KeyPair, new_identity
from cpr_operator.cluster.identity import CERTIFICATE, KEY, REFUSED_S, OperatorIdentity, from_secret, in_memory
from cpr_operator.cluster.local.cluster import IDENTITY, LocalCluster
from cpr_operator.cluster.protocol import AlreadyExistsError, NotFoundError, RefusedError

FORBIDDEN = "secrets is forbidden"
PATH = "/api/v1/namespaces/operators/secrets"


class Secrets:
    """An API server that has Secrets alone, and `late` ones, which exist after the first read."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.late: dict[str, dict[str, Any]] = {}
        self.forbids, self.reads = False, 0

    async def get(self, path: str) -> dict[str, Any]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.forbids:
            raise RefusedError(FORBIDDEN)
        try:
            return self.found[path]
        except KeyError:
            raise NotFoundError(path) from None
        finally:
            self.found |= self.late

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name = f"{path}/{body['metadata']['name']}"
        if name in self.found:
            raise AlreadyExistsError(name)
        assert body["type"] == "kubernetes.io/tls"
        data = {key: base64.b64encode(text.encode()).decode() for key, text in body["stringData"].items()}
        self.found[name] = {"data": data}
        return self.found[name]


def identity(secrets: Secrets, clock: list[float] | None = None) -> OperatorIdentity:
    now = clock or [0.0]
    return OperatorIdentity(from_secret(cast("ApiServer", secrets), "operators", "cprjob-identity"), lambda: now[0])


def stored(pair: KeyPair) -> dict[str, Any]:
    texts = {CERTIFICATE: pair.certificate, KEY: pair.key}
    return {"data": {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}}


async def test_identity_is_made_once_and_read_by_the_next_operator() -> None:
    secrets = Secrets()
    first = identity(secrets)
    made = await asyncio.gather(first.get(), first.get(), first.get())
    assert len(set(made)) == 1
    assert secrets.reads == 1
    assert list(secrets.found) == [f"{PATH}/cprjob-identity"]
    assert await identity(secrets).get() == made[0]


async def test_replica_that_comes_second_has_the_identity_of_the_first() -> None:
    secrets, other = Secrets(), new_identity()
    secrets.late = {f"{PATH}/cprjob-identity": stored(other)}
    assert await identity(secrets).get() == other


async def test_refusal_names_the_secret_and_is_not_repeated_at_once() -> None:
    secrets, clock = Secrets(), [0.0]
    secrets.forbids = True
    refused = identity(secrets, clock)
    for _ in range(3):
        with pytest.raises(RefusedError, match=f"cprjob-identity in operators: {FORBIDDEN}"):
            await refused.get()
    assert secrets.reads == 1
    secrets.forbids = False
    clock[0] += REFUSED_S
    assert (await refused.get()).certificate


@pytest.mark.parametrize("data", [{}, None, {CERTIFICATE: "AA==", KEY: "AA=="}, {CERTIFICATE: "!", KEY: "!"}])
async def test_damaged_secret_is_refused(data: object) -> None:
    secrets = Secrets()
    secrets.found = {f"{PATH}/cprjob-identity": {"data": data}}
    with pytest.raises(RefusedError, match="delete it"):
        await identity(secrets).get()


async def test_key_of_another_certificate_is_refused() -> None:
    secrets, one, two = Secrets(), new_identity(), new_identity()
    secrets.found = {f"{PATH}/cprjob-identity": stored(KeyPair(one.certificate, two.key))}
    with pytest.raises(RefusedError, match="delete it"):
        await identity(secrets).get()


async def test_process_without_a_secret_keeps_its_identity() -> None:
    one, two = OperatorIdentity(in_memory, lambda: 0.0), OperatorIdentity(in_memory, lambda: 0.0)
    assert await one.get() == await two.get()


async def test_resumed_local_run_has_the_identity_of_the_first(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        cluster = LocalCluster(tmp_path, clock=lambda: 0.0, rng=random.Random(1), environment={})
        found.append(await cluster.identity.get())
        await cluster.close()
    assert found[0] == found[1]
    files = sorted((tmp_path / "secrets" / IDENTITY).iterdir())
    assert [(each.name, stat.S_IMODE(each.stat().st_mode)) for each in files] == [(CERTIFICATE, 0o600), (KEY, 0o600)]

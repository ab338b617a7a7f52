from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from kubernetes.aio import client

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.election import NotLeadingError, Term


@pytest.mark.parametrize(
    "write",
    [
        lambda server: server.create("/x", {}),
        lambda server: server.replace("/x", {}),
        lambda server: server.merge("/x", {}),
        lambda server: server.apply("/x", {}, "m"),
        lambda server: server.delete("/x", {}),
    ],
)
async def test_nothing_is_written_after_the_term_and_everything_can_be_read(
    write: Callable[[ApiServer], Awaitable[object]],
) -> None:
    now = 0.0
    term = Term(lambda: now, until=6.0)
    server = ApiServer(client.Configuration(host="http://127.0.0.1:9"), term.check)  # nobody listens there
    try:
        with pytest.raises(UnavailableError, match="does not answer"):
            await write(server)
        now = 6.0
        with pytest.raises(NotLeadingError):
            await write(server)
        with pytest.raises(UnavailableError, match="does not answer"):
            await server.get("/x")
    finally:
        await server.close()

"""Converts an API server's refusal (HTTP code and Status object) to an error of the protocol."""

from __future__ import annotations

import json
from http import HTTPStatus

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    RefusedError,
    TerminatingError,
    UnavailableError,
)

#: The cause that the server gives if the namespace is being deleted, so nothing can be created in it.
_TERMINATING = "NamespaceTerminating"


def error_of(code: int, body: bytes) -> ClusterError:
    """The error that an answer stands for; its text is the server's own message.

    401 and 410 are 'unavailable': tokens and list pages expire, and the next request starts afresh.
    """
    reason, message, causes = _read_status(code, body)
    match code:
        case HTTPStatus.NOT_FOUND:
            return NotFoundError(message)
        case HTTPStatus.CONFLICT if reason == "AlreadyExists":
            return AlreadyExistsError(message)
        case HTTPStatus.CONFLICT:
            return ConflictError(message)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.GONE | HTTPStatus.TOO_MANY_REQUESTS:
            return UnavailableError(message)
        case _ if code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return TerminatingError(message) if _TERMINATING in causes else RefusedError(message)
        case _:
            return UnavailableError(message)


def _read_status(code: int, body: bytes) -> tuple[str, str, frozenset[str]]:
    """Reason, message, and the reasons of the causes."""
    try:
        status = json.loads(body)
        causes = (status.get("details") or {}).get("causes") or ()
        reasons = frozenset(str(cause.get("reason")) for cause in causes)
        return status.get("reason", ""), status.get("message") or f"HTTP {code}", reasons
    except (ValueError, AttributeError):  # a proxy's page, or nothing
        return "", f"HTTP {code}: {body[:200].decode(errors='replace')}", frozenset()

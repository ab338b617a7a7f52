"""The operator's environment, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAMESPACES = "CPR_OPERATOR_NAMESPACES"
HTTP_PORT = "CPR_OPERATOR_HTTP_PORT"
LEASE = "CPR_OPERATOR_LEASE"
DEFAULT_HTTP_PORT = 8080
DEFAULT_LEASE = "default/cprjob"

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


class ConfigurationError(ValueError):
    """The operator's environment cannot be understood; the message names the variable."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the operator's environment says. No namespaces: all of the cluster. `lease` is (namespace, name)."""

    namespaces: tuple[str, ...] = ()
    http_port: int = DEFAULT_HTTP_PORT
    lease: tuple[str, str] = ("default", "cprjob")

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Configuration:
        """Read the variables. Raises ConfigurationError."""
        names = tuple(part.strip() for part in environ.get(NAMESPACES, "").split(","))
        port = environ.get(HTTP_PORT, "").strip() or str(DEFAULT_HTTP_PORT)
        if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 -- the largest port
            raise ConfigurationError(f"{HTTP_PORT} is {port!r}; it must be a port number")
        lease = environ.get(LEASE, "").strip() or DEFAULT_LEASE
        if not re.fullmatch(f"{_NAME}/{_NAME}", lease):
            raise ConfigurationError(f"{LEASE} is {lease!r}; it must be a namespace and a name: NAMESPACE/NAME")
        namespace, _, name = lease.partition("/")
        return cls(tuple(name for name in names if name), int(port), (namespace, name))

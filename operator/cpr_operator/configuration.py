"""The operator's environment, read and checked, and its log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from pydantic import ValidationError
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from cpr_contract.choices import Encryption
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.desired.job_objects import IngressSources
from cpr_operator.desired.template import Restriction

NAMESPACES = "CPR_OPERATOR_NAMESPACES"
HTTP_PORT = "CPR_OPERATOR_HTTP_PORT"
LEASE = "CPR_OPERATOR_LEASE"
OWN_NAMESPACE = "CPR_OPERATOR_NAMESPACE"
REPORT_PEERS = "CPR_OPERATOR_REPORT_PEERS"
RESTRICT_TEMPLATES = "CPR_OPERATOR_RESTRICT_TEMPLATES"
SERVICE_ACCOUNTS = "CPR_OPERATOR_SERVICE_ACCOUNTS"
KUEUE = "CPR_OPERATOR_KUEUE"
ENCRYPTION = "CPR_OPERATOR_ENCRYPTION"
ISSUER = "CPR_OPERATOR_ISSUER"
LOG_LEVEL = "CPR_OPERATOR_LOG_LEVEL"
LOG_FORMAT = "CPR_OPERATOR_LOG_FORMAT"
#: OpenTelemetry's own variables. Its exporter reads them, and further ones.
COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
NO_TRACES = "OTEL_SDK_DISABLED"
DEFAULT_HTTP_PORT = 8080
DEFAULT_LEASE = "default/cprjob"
LEVELS = ("info", "debug", "warning", "error")
FORMATTERS: Mapping[str, logging.Formatter] = {
    "text": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonFormatter(
        ("levelname", "name", "message"),
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        reserved_attrs=[*RESERVED_ATTRS, "settings", "k8s_skip", "k8s_ref"],  # the last are kopf's, for itself
        timestamp="time",
    ),
}

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


class ConfigurationError(ValueError):
    """A variable of the operator's environment is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The operator's environment.

    No namespaces: all of the cluster. `lease` is (namespace, name). `sources` may reach the HTTP port of pods; None if
    the operator runs outside of the cluster: then every pod may. `restriction` limits pod templates. `kueue`: jobs may
    stand in queues of Kueue. `traces`: spans are sent to a collector. `encryption`, `issuer`: those of jobs
    that state none.
    """

    namespaces: tuple[str, ...] = ()
    http_port: int = DEFAULT_HTTP_PORT
    lease: tuple[str, str] = ("default", "cprjob")
    sources: IngressSources | None = None
    restriction: Restriction | None = field(default_factory=Restriction)
    kueue: bool = False
    traces: bool = False
    encryption: Encryption = "None"
    issuer: IssuerRef | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Configuration:
        """Read the variables. Raises ConfigurationError."""
        port = environ.get(HTTP_PORT, "").strip() or str(DEFAULT_HTTP_PORT)
        if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 -- the largest port
            raise ConfigurationError(f"{HTTP_PORT} is {port!r}; it must be a port number")
        lease = environ.get(LEASE, "").strip() or DEFAULT_LEASE
        if not re.fullmatch(f"{_NAME}/{_NAME}", lease):
            raise ConfigurationError(f"{LEASE} is {lease!r}; it must be a namespace and a name: NAMESPACE/NAME")
        namespace, _, name = lease.partition("/")
        restricted = _truth(environ, RESTRICT_TEMPLATES, "true")
        restriction = Restriction(frozenset(_names(environ, SERVICE_ACCOUNTS))) if restricted else None
        own, text = environ.get(OWN_NAMESPACE, ""), environ.get(REPORT_PEERS, "") or "[]"
        try:
            others = json.loads(text)
        except ValueError:
            others = None
        if not isinstance(others, list) or not all(isinstance(peer, dict) for peer in others):
            raise ConfigurationError(f"{REPORT_PEERS} is {text!r}; it must be a JSON list of NetworkPolicyPeers")
        sources = IngressSources(own, tuple(others)) if own else None
        kueue = _truth(environ, KUEUE, "false")
        traces = any(environ.get(name, "").strip() for name in COLLECTORS) and not _truth(environ, NO_TRACES, "false")
        encryption = cast("Encryption", _one_of(environ, ENCRYPTION, get_args(Encryption)))
        return cls(
            _names(environ, NAMESPACES),
            int(port),
            (namespace, name),
            sources,
            restriction,
            kueue,
            traces,
            encryption,
            _issuer(environ),
        )


def set_up_logs(environ: Mapping[str, str]) -> None:
    """Set level and format of the operator's and kopf's log. Raises ConfigurationError."""
    level, form = _one_of(environ, LOG_LEVEL, LEVELS), _one_of(environ, LOG_FORMAT, tuple(FORMATTERS))
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form])
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        # It writes a line for each watch event.
        logging.getLogger("kopf.objects").setLevel(max(logging.WARNING, logging.getLogger().level))
    # It warns that kopf does not handle signals: `__main__` does.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


def _names(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    names = (part.strip() for part in environ.get(variable, "").split(","))
    return tuple(name for name in names if name)


def _issuer(environ: Mapping[str, str]) -> IssuerRef | None:
    """The issuer in KIND.GROUP/NAME, None if the variable is empty."""
    text = environ.get(ISSUER, "").strip()
    if not text:
        return None
    described, _, name = text.partition("/")
    kind, _, group = described.partition(".")
    try:
        return IssuerRef(name=name, kind=kind, **({"group": group} if group else {}))
    except ValidationError as error:
        example = "ClusterIssuer.cert-manager.io/organisation"
        raise ConfigurationError(f"{ISSUER} is {text!r}; it must be KIND.GROUP/NAME, as in {example}") from error


def _truth(environ: Mapping[str, str], variable: str, default: str) -> bool:
    text = environ.get(variable, "") or default
    if text not in {"true", "false"}:
        raise ConfigurationError(f"{variable} is {text!r}; it must be true or false")
    return text == "true"


def _one_of(environ: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str:
    """The variable's value, the first of those allowed if it is empty."""
    value = environ.get(variable, "") or allowed[0]
    if value not in allowed:
        raise ConfigurationError(f"{variable} is {value!r}; it must be one of {', '.join(allowed)}")
    return value

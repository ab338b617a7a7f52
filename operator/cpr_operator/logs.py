"""The operator's log: from which level on, and whether as text or as JSON. kopf writes to the same one."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from cpr_operator.configuration import ConfigurationError

LOG_LEVEL = "CPR_OPERATOR_LOG_LEVEL"
LOG_FORMAT = "CPR_OPERATOR_LOG_FORMAT"
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


def set_up_logs(environ: Mapping[str, str]) -> None:
    """Write the log as the environment says. Raises ConfigurationError."""
    level, form = _one_of(environ, LOG_LEVEL, LEVELS), _one_of(environ, LOG_FORMAT, tuple(FORMATTERS))
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form])
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        # A line for each watch event.
        logging.getLogger("kopf.objects").setLevel(max(logging.WARNING, logging.getLogger().level))
    # It warns that kopf does not handle signals, which is done here.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


def _one_of(environ: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str:
    """The variable's value, the first of those allowed if it is empty."""
    value = environ.get(variable, "") or allowed[0]
    if value not in allowed:
        raise ConfigurationError(f"{variable} is {value!r}; it must be one of {', '.join(allowed)}")
    return value

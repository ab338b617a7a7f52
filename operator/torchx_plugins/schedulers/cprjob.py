"""TorchX finds the scheduler `cprjob` here; its releases before plugins find it by an entry point.

These folders have no `__init__.py`, for others put their plugins into them too.
"""

from __future__ import annotations

from torchx import plugins

from cpr_operator.torchx.scheduler import CPRJobScheduler, create_scheduler


def cprjob(session_name: str, **parameters: object) -> CPRJobScheduler:
    """Make the scheduler."""
    return create_scheduler(session_name, **parameters)


#: A TorchX that reads entry points as well would warn with each command that it finds the scheduler twice.
_SOURCES = getattr(plugins.registry(), "_plugin_sources", None)
if not (_SOURCES and _SOURCES & type(_SOURCES).ENTRYPOINT):
    plugins.register.scheduler()(cprjob)

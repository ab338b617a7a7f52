"""TorchX finds the scheduler `cprjob` here; its releases before plugins find it by an entry point.

These folders have no `__init__.py`, for others put their plugins into them too. TorchX loads this module with every
command, so the scheduler is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx import plugins

if TYPE_CHECKING:
    from cpr_operator.torchx.scheduler import CPRJobScheduler


def cprjob(session_name: str, **parameters: object) -> CPRJobScheduler:
    """Make the scheduler."""
    from cpr_operator.torchx.scheduler import create_scheduler  # noqa: PLC0415 -- see above

    return create_scheduler(session_name, **parameters)


#: A TorchX that reads entry points as well would warn with each command that it finds the scheduler twice.
_SOURCES = getattr(plugins.registry(), "_plugin_sources", None)
if not (_SOURCES and _SOURCES & type(_SOURCES).ENTRYPOINT):
    plugins.register.scheduler()(cprjob)

"""The plugin by which TorchX finds the scheduler `cprjob`. Releases without plugins use an entry point.

These folders have no `__init__.py`, because other packages install plugins into them too. TorchX imports this module
with every command, so the scheduler is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx import plugins

if TYPE_CHECKING:
    from cpr_operator.torchx.scheduler import CPRJobScheduler


def cprjob(session_name: str, **parameters: object) -> CPRJobScheduler:
    """Return the scheduler."""
    from cpr_operator.torchx.scheduler import create_scheduler  # noqa: PLC0415 -- see above

    return create_scheduler(session_name, **parameters)


#: A TorchX that also reads entry points would warn at each command about two schedulers of this name.
_SOURCES = getattr(plugins.registry(), "_plugin_sources", None)
if not (_SOURCES and _SOURCES & type(_SOURCES).ENTRYPOINT):
    plugins.register.scheduler()(cprjob)

"""What ends a wait: a new roster, SIGTERM, a broken group, a newer incarnation of oneself.

These are no errors but turns of the road, so they do not derive from `TrainerError`: the loop catches each by name.
"""

from __future__ import annotations

from collections.abc import Callable

#: Called between the slices of every wait: keeps the process healthy, follows rosters, raises what ends the wait.
PollInterrupts = Callable[[], None]

#: The length of one slice of a wait: the delay with which a wait notices what ends it.
POLL_INTERVAL_S = 0.05


class Interruption(Exception):  # noqa: N818 -- see the module's docstring
    """Anything below."""


class RosterChanged(Interruption):
    """The newest roster has another group or generation: leave this one."""


class Terminated(Interruption):
    """SIGTERM came, or a roster that says stop: save and go."""


class Superseded(Interruption):
    """A newer incarnation of this trainer exists: step aside."""


class GroupBroken(Interruption):
    """A member of the group is gone or stuck: meet again. The message says who and why."""


class Finished(Interruption):
    """The leader has committed the final anchor."""

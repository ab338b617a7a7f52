"""The trace of a training process: one line of JSON for each step, in the file that an environment variable names.

`cprjob bench train` reads it from CPRJob and from baselines. Both ends run on one machine, so the clock is the
machine's monotonic one, and the document has no contract version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

#: Names the file; without it nothing is traced.
STEP_TRACE = "CPR_STEP_TRACE"


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step that ended at `ended_s`. stages_s: its time by stage, in the order of the first step's."""

    step: int
    ended_s: float
    stages_s: Mapping[str, float]

    def to_line(self) -> str:
        """Return the step as a line of the trace."""
        stages = {name: round(seconds, 7) for name, seconds in self.stages_s.items()}
        return json.dumps({"step": self.step, "ended_s": round(self.ended_s, 7), "stages_s": stages}) + "\n"

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Read a line. Raises ValueError or KeyError if it is incomplete, as the last line of a running process."""
        found = json.loads(line)
        return cls(int(found["step"]), float(found["ended_s"]), dict(found["stages_s"]))

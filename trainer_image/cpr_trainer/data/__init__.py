"""Which samples a step trains, and where they come from.

`order` names the rows of a step, a `Dataset` (`criteo` or `synthetic`) delivers them, `loader` prepares the next step
while this one computes. A batch depends on the step alone, never on the number of trainers, so training resumes
exactly from a step number.
"""

"""Priority saving: which rows of a shard to save between anchors, so that little is lost for few bytes written.

CPR (Maeng et al., MLSys 2021): instead of all n rows every T, the r n most important ones every r T. The same volume,
and the hot rows far fresher. The strategies differ in what they take for importance.
"""

from cpr_trainer.embedding.priority.strategies import Strategy, make_tracker
from cpr_trainer.embedding.priority.tracker import Claim, Population, Tracker, large_tables, population_of

__all__ = ["Claim", "Population", "Strategy", "Tracker", "large_tables", "make_tracker", "population_of"]

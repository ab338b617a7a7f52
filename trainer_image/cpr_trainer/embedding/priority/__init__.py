"""Priority saving: the choice of the rows that a shard saves between anchors, to lose little for few bytes written.

CPR (Maeng et al., MLSys 2021): instead of all n rows every T, the r n most important ones every r T. The volume is the
same, and the hot rows are far fresher. The strategies differ in their measure of importance.
"""

from cpr_trainer.embedding.priority.strategies import Strategy, make_tracker
from cpr_trainer.embedding.priority.tracker import Claim, Population, Tracker, large_tables, population_of

__all__ = ["Claim", "Population", "Strategy", "Tracker", "large_tables", "make_tracker", "population_of"]

"""Leader election among operators by a Lease, with the rules of client-go."""

from cpr_operator.election.elector import Elector, NotLeadingError, Term, Timing, new_identity
from cpr_operator.election.lease import ClusterLeases

__all__ = ["ClusterLeases", "Elector", "NotLeadingError", "Term", "Timing", "new_identity"]

"""What is saved of a job, or of all jobs of a store, as people look at it: points to go back to, and their damage."""

from cpr_trainer.checkpoint.inventory.holdings import Held, Holdings, read_holdings
from cpr_trainer.checkpoint.inventory.points import points_of
from cpr_trainer.checkpoint.inventory.verifying import verify

__all__ = ["Held", "Holdings", "points_of", "read_holdings", "verify"]

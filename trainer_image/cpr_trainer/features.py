"""The names that a job's own network imports: the features that its model states, as the network gets them."""

from cpr_trainer.embedding.features import Features, Jagged

__all__ = ["Features", "Jagged"]

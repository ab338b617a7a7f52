"""The names that a job's own network imports: the features that its model states, as the network gets them."""

from cpr_trainer.embedding.feature_vectors import Features, Jagged

__all__ = ["Features", "Jagged"]

"""Between trainers and shards: frames, handshake, and the trainer's side of the data plane."""

from cpr_trainer.exchange.exchange import WINDOW, Exchange
from cpr_trainer.exchange.lookup import PendingLookup, SaveState, ShardsAwayError

__all__ = ["WINDOW", "Exchange", "PendingLookup", "SaveState", "ShardsAwayError"]

"""The data plane between trainers and shards: frames, handshake, and the trainer's side of it."""

from cpr_trainer.exchange.exchange import WINDOW, Exchange
from cpr_trainer.exchange.lookup import PendingLookup, SaveState, ShardsUnavailableError

__all__ = ["WINDOW", "Exchange", "PendingLookup", "SaveState", "ShardsUnavailableError"]

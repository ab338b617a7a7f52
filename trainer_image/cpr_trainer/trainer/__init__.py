"""The trainer's role: the loop that trains, the group of trainers it belongs to, and the leader's saves."""

"""Trainers that do not wait for each other: a thread averages their dense copies while they train (ADR 18).

`averaging` is the arithmetic, `averaging` what a worker shares with its thread, `server` the leader's thread, `client`
a follower's; `groups` are the two views of a group that the loop sees.
"""

"""Trainers without lockstep: a thread averages their dense copies while they train (ADR 18).

`averaging` is the arithmetic, `averaging_state` the state that a worker shares with its averaging thread,
`averaging_server` the leader's thread and `averaging_client` a follower's; `async_groups` implements the groups.
"""

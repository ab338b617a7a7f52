"""Trainers in lockstep: they form a group, agree on one dense state and on each step, and sum gradients.

`group` has the interface, `group_leader` and `group_follower` implement it over the control connections of `listener`
and `transport`; `collective` wraps one Gloo process group, `auth` proves the job's key on all connections.
"""

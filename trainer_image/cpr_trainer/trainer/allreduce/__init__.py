"""The group of trainers: how they meet, agree on each step, and reduce gradients.

`meeting` decides who copies whose dense state, `channel` carries small frames between members, `collective` wraps one
Gloo process group, `members` puts them together: `Solo`, `Leader` and `Follower` are one trainer's view of its group.
"""

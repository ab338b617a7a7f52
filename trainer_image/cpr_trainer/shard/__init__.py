"""The shard process: it holds a part of all embedding rows, serves and changes them, saves and restores them.

`server` reads frames from sockets and passes them to `service`, which decides by the pure rules of `state` and applies
them. `lifecycle` follows rosters, restores, saves and ends the process. All of this runs on one thread. Other threads
read and write the store, and exchange parity with other shards.
"""

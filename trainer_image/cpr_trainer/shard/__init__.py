"""The shard process: it holds a part of all embedding rows, serves and changes them, saves and restores them.

Sockets (`server`) hand frames to the service (`service`), which asks pure rules what to do (`pushes`, `cuts`,
`losses`); rosters, restores, saves and the end of the process are the life (`life`). All of this runs on one thread;
reading and writing the store happens on threads aside (`restore`, `writer`).
"""

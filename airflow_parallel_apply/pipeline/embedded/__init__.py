"""Servers of one host, started by whoever needs one first, there as long as somebody holds a lease: Spark, the router.

::

    hold_server ──shared lock──▶ lease ◀──exclusive lock, for a moment, "is anybody there?"── supervisor ──▶ server
         └───exclusive lock, handed down to the supervisor that it starts──▶ supervisor

Every fact is a lock that the kernel gives back at any death, kill -9 included; the state file is only an address.

- A supervisor lives as long as the lock on `supervisor` is held. Whoever gets that lock starts one and hands the lock
  down, so there are never two.
- The supervisor stops when it has had the lease exclusively for the idle time, and keeps it while it stops: a client
  that comes then waits, and starts the next one.
"""

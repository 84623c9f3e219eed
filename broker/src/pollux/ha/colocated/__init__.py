"""Colocated backups: brokers that host each other's backups, each life in a process of its own.

* :mod:`pollux.ha.colocated.placement`: which host is asked for a backup, and what it answers

The supervisor and the policy are not built yet: a colocated policy is refused by name.
"""

"""Replication: live and backup without shared storage. See docs/replication.md.

* :mod:`pollux.ha.replication.sequence`: who has the newest data, decided from two numbers
* :mod:`pollux.ha.replication.local`: what a member knows of its own data, beside its journal
* :mod:`pollux.ha.replication.serving`: the live's side of the stream, for one backup
* :mod:`pollux.ha.replication.following`: the backup's side
* :mod:`pollux.ha.replication.saved`: data moved aside before a full copy
"""

"""Replication: live and backup without shared storage. See docs/replication.md.

* :mod:`pollux.cluster.sequence`: who has the newest data, decided from two numbers
* :mod:`pollux.ha.replication.local`: what a member knows of its own data, beside its journal
* :mod:`pollux.ha.replication.live_side`: the live's side of the stream, for one backup
* :mod:`pollux.ha.replication.backup_side`: the backup's side
* :mod:`pollux.ha.replication.old_replicas`: data moved aside before a full copy
"""

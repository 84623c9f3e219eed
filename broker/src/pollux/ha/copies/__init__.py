"""A copy of the store for each member: what all policies have in common that copy. See docs/replication.md.

* :mod:`pollux.ha.copies.local`: what a member knows of its own data, beside its journal
* :mod:`pollux.ha.copies.live_side`: the live's side of the stream, for one backup
* :mod:`pollux.ha.copies.replicas`: all of its backups, and what has to happen when one is lost
* :mod:`pollux.ha.copies.backup_side`, :mod:`pollux.ha.copies.follow_loop`: the backup's side
* :mod:`pollux.ha.copies.old_replicas`: data moved aside before a full copy
"""

"""Replication: live and backup without shared storage. See docs/replication.md.

* :mod:`pollux.cluster.sequence`: who has the newest data, decided from two numbers
* :mod:`pollux.ha.replication.member`: when a member may serve, and how it proves that it still may
* :mod:`pollux.ha.copies`: the copies themselves, which are no business of this policy alone
"""

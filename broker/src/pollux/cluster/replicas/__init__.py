"""Queue replicas: a queue here that has exactly what a queue of another broker has, as long as that is so.

* :mod:`pollux.cluster.replicas.feed`: the source, which tells what comes into its queue and what leaves it
* :mod:`pollux.cluster.replicas.queue_replica`: the replica, which connects, asks, and does the same
* :mod:`pollux.cluster.replicas.service`: all of a broker, kept in its store
"""

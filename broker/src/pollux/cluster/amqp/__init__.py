"""Connections that this broker makes to others by AMQP 1.0, whichever brokers they are: the broker as a client.

* :mod:`pollux.cluster.amqp.connection`: one connection, for as long as the broker serves
* :mod:`pollux.cluster.amqp.sender`: what takes messages from a queue, and sends them
* :mod:`pollux.cluster.amqp.receiver`: what fetches messages into a queue

A message is let go of by the one side when the other has said that it has it. So each arrives at least once; what was
under way when a connection broke may come twice. It knows nothing of nodes and links of a cluster.
"""

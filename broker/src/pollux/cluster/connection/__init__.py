"""A cluster connection at work: links to other nodes, what is told and heard over them, and the messages that go there.

* :mod:`pollux.cluster.connection.forwarded`: a message on its way to another node: stored, sent, taken in
* :mod:`pollux.cluster.connection.local`: the records of this node's own queues
* :mod:`pollux.cluster.connection.spread`: which node gets a message
* :mod:`pollux.cluster.connection.outgoing`: a link to a node; it drains what waits for that node (`sent`: its numbers)
* :mod:`pollux.cluster.connection.incoming`: a link from a node: takes messages in, tells of this node's queues
* :mod:`pollux.cluster.connection.redistribution`, `mover`: what moves from queues here to others
* :mod:`pollux.cluster.connection.service`: all of them together, as a node starts and stops them
"""

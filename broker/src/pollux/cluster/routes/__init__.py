"""Which node of a cluster has which queue, and which of them a message goes to. Pure: no input or output, no clock.

* :mod:`pollux.cluster.routes.records`: one versioned record a queue; what is told to a peer, and what was heard of it
* :mod:`pollux.cluster.routes.table`: queues of other nodes, the paths to them, the shortest that is connected
* :mod:`pollux.cluster.routes.choice`: the node that gets a new message
* :mod:`pollux.cluster.routes.moves`: what of a queue nobody takes here, and somebody does elsewhere
* :mod:`pollux.cluster.routes.numbers`: the numbers of a link, by which a message that is sent again is known
"""

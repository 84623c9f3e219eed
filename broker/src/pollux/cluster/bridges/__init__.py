"""Core bridges: a queue of this broker whose messages go to another one, on links as those of a cluster connection.

* :mod:`pollux.cluster.bridges.bridge`: one bridge, its link and what feeds it
* :mod:`pollux.cluster.bridges.incoming_bridge`: the links of others' bridges
* :mod:`pollux.cluster.bridges.service`: all of a broker
"""

"""MQTT in a cluster: sessions, link stealing and retained messages that all nodes have. See docs/clusters.md.

* :mod:`words`: what nodes say to each other about it, as bytes. Pure
* :mod:`retained`: which of two retained messages of a topic counts. Pure
* :mod:`channels`: the two ends of the channel by which a node asks another one, and hears of its retained messages
* :mod:`service`: the other nodes as MQTT sessions see them
"""

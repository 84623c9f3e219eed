"""Connection routers: which broker of a pool serves a client, by what is known of it. See docs/clusters.md.

* :mod:`keys`, :mod:`policies`, :mod:`cache`: what is decided about, and how. Pure
* :mod:`router`: one router's decisions. Pure but for the wait for its pool
* :mod:`pool`, :mod:`probe`: the brokers to choose from, and whether each serves
* :mod:`listeners`: the brokers of a pool that announce themselves
* :mod:`service`: the routers of a node, by name
"""

"""Scale-down: what a broker has goes to others of its cluster before it is gone for good. See docs/scale-down.md.

* :mod:`pollux.cluster.scale_down.plan`: who may get it, who gets which queue, and how far it is: decisions
* :mod:`pollux.cluster.scale_down.left`: what a look at the broker means, and when to give up: decisions
* :mod:`pollux.cluster.scale_down.contents`: the queues that have to go
* :mod:`pollux.cluster.scale_down.definitions`: what a queue is, and duplicate ids, as they are handed over
* :mod:`pollux.cluster.scale_down.transfer`: takes a queue's messages out, and into the queue from which they are sent
* :mod:`pollux.cluster.scale_down.drain`: all of it together, begun, watched, cancelled and resumed
* :mod:`pollux.cluster.scale_down.receiver`: the other side
"""

"""Two stopped journals of one node id: which is the newest, and what each has that the other has not.

* :mod:`pollux.store.compare.side`: what one store holds
* :mod:`pollux.store.compare.verdict`: the comparison, from two of those
"""

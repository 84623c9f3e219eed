"""The drill: breaks a broker on purpose, under traffic, and judges from a ledger whether it kept its word.

* :mod:`pollux.drill.manifest`: which brokers there are and how they are started and stopped
* :mod:`pollux.drill.faults`: what can be broken
* :mod:`pollux.drill.run`: traffic, fault, recovery, draining
* :mod:`pollux.drill.report`: the verdict, `report.json` and `report.html`

A program of its own that uses :mod:`pollux.client`; it knows a broker by its ports and its management API only.
"""

"""Colocated backups: brokers that host each other's backups, each life in a process of its own.

* :mod:`pollux.ha.colocated.placement`: which host is asked for a backup, and what it answers
* :mod:`pollux.ha.colocated.life`: what each life of a host runs with

Who starts the processes is :mod:`pollux.supervisor`.
"""

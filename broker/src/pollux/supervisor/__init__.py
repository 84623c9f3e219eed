"""The supervisor of a host with colocated backups: one process is one life, and this one starts and watches them.

* :mod:`pollux.supervisor.policy`: what follows when a life's process ended; pure
* :mod:`pollux.supervisor.hosted`: which backups this host has, on disk
* :mod:`pollux.supervisor.child`: one life's process, seen from the supervisor
* :mod:`pollux.supervisor.supervisor`: all of them, signals, and the service manager
* :mod:`pollux.supervisor.line`: the supervisor, seen from a life's process
* :mod:`pollux.supervisor.agent`: how a life that serves gets a backup at another host, by the cluster connection
"""

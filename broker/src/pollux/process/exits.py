"""Exit codes of ``pollux`` (documented in docs/cli.md). Scripts and service managers rely on the numbers."""

from __future__ import annotations

EXIT_OK = 0
#: The request failed: what was asked for does not exist, is not allowed, or contradicts what there is.
EXIT_FAILED = 1
#: The command line or the configuration is wrong; nothing was done.
EXIT_USAGE = 2
#: No broker answers, or it answers that it is not ready.
EXIT_UNAVAILABLE = 3
#: Log-in refused or permission missing.
EXIT_DENIED = 4
#: The data directory is open in another broker.
EXIT_LOCKED = 5
#: The store failed (I/O error, failed sync): the broker stopped without confirming anything more.
EXIT_STORE = 6
#: An acceptor or the management port could not listen.
EXIT_LISTEN = 7
#: The critical analyzer ended a broker that stood still.
EXIT_HALTED = 8
#: `pollux journal verify` found damage.
EXIT_DAMAGED = 9
#: The broker lost, or could not prove any more, its right to serve (another took over, or the shared store hangs).
EXIT_FENCED = 10
#: The shared store is not for this broker (not shared, read-only, of another node ...); nothing was written.
EXIT_STORE_REFUSED = 11
#: `pollux journal verify` was given a directory that is no store.
EXIT_NOT_A_STORE = 12
#: The broker stopped, and not everything that scale-down was to hand over went: what is left is in its store.
EXIT_UNDRAINED = 13

"""Hold what one operating system process needs: start and stop, acceptors, connections, TLS, limits, the watchdog."""

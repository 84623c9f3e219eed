"""One way to test: broker processes, load, traffic and its ledger, disks that fail, and other people's programs.

Tests, benchmarks and the lab import it; it imports none of them.
"""

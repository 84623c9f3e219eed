"""One way to test: broker processes, load, traffic and its ledger, disks that fail, and other people's programs.

Tests, benchmarks, the lab and tools import it; it imports none of them.
"""

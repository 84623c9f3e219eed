"""The files on disk, byte by byte: journal, audit trail, ledger. Imports nothing else of the broker."""

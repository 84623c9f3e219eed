"""The files on disk, byte by byte: journal, checkpoint, audit trail, ledger. Imports nothing else of the broker."""

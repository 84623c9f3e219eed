"""The store's port on a database: the same files as rows. See docs/database-store.md.

**Invariant.** Every transaction that changes a store's files also proves, at its own place in the order of all
transactions, that its epoch is the current one; who takes the store over raises the epoch. So after a takeover no write
of an earlier life can commit, however long that life stood still. Clocks decide only how soon somebody takes over.
"""

"""One store for all members: who holds the lock serves. See docs/shared-store.md."""

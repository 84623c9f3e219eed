"""Databases for the store's tests."""

from harness.databases import databases, postgresql, targets

__all__ = ["databases", "postgresql", "targets"]

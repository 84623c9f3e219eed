"""Addresses, queues, bindings, selectors, groups: pure decisions. No input or output, no clock."""

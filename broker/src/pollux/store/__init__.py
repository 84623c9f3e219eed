"""All that outlives a process: journal, bindings, pages, large messages, checkpoints, locks. Knows no protocol."""

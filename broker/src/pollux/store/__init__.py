"""What survives: journal, bindings, pages, large messages, checkpoints, locks. Knows no queue and no protocol."""

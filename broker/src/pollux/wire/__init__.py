"""Codecs: bytes in, events out. No event loop, no socket."""

"""The broker's version; a test compares it with the package's metadata, which takes 30 ms to read at each start."""

from __future__ import annotations

VERSION = "0.1.0"

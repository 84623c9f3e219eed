"""The names and ports of `inventories/local`, of which there is one site for each demo and each test."""

from __future__ import annotations

MEMBERS = ("castor", "pollux")
#: Before the offset: acceptor and management of both brokers.
PORTS = (61616, 8161, 61716, 8261)

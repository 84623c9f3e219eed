#!/usr/bin/python
"""Sees whether a ZooKeeper node serves: grants a session. Standard library only; needs no four-letter words."""

from __future__ import annotations

import socket
import ssl
import struct
import time

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_zookeeper
short_description: A gate on a ZooKeeper node
description:
  - Asks the node for a session, as a client does, and gives it back at once. A node that is not part of a majority
    grants none, so this passes only for one that serves.
  - Fails when none is granted within O(wait) seconds. Changes nothing, and does the same in check mode.
options:
  host:
    description: The node's address.
    type: str
    required: true
  port:
    description: Its port for clients.
    type: int
    required: true
  wait:
    description: Seconds to wait.
    type: float
    default: 0
  key:
    description: PEM file with the certificate and the private key to show; the node is asked over TLS.
    type: path
  authorities:
    description: PEM file with the authorities of the node's certificate, which must be for O(host).
    type: path
author: Pollux
"""
EXAMPLES = r"""
- name: Wait until the node serves
  pollux_zookeeper:
    host: zk1.example.com
    port: 2181
    wait: 60
"""
RETURN = r"""
session_ms: {description: The session granted, in milliseconds., type: int, returned: success}
waited: {description: Seconds until then., type: float, returned: always}
"""
#: One question may take this long, seconds.
ANSWER_TIMEOUT = 5.0
POLL_INTERVAL = 0.25
#: Asked for; the node grants what it is set to grant.
SESSION_MS = 4000
_CLOSE = -11


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise OSError("it closed the connection: it is not part of a majority (yet)")
        data += piece
    return data


def connect(host: str, port: int, key: str | None, authorities: str | None) -> socket.socket:
    """Return a connection to the node. Raises OSError with the reason."""
    connection = socket.create_connection((host, port), timeout=ANSWER_TIMEOUT)
    if not key:
        return connection
    try:
        context = ssl.create_default_context(cafile=authorities)
        context.load_cert_chain(key)
        return context.wrap_socket(connection, server_hostname=host)
    except OSError:
        connection.close()
        raise


def ask(host: str, port: int, key: str | None = None, authorities: str | None = None) -> int:
    """Return the session granted, in milliseconds. Raises OSError with the reason."""
    with connect(host, port, key, authorities) as connection:
        # protocol version, last transaction seen, session wanted, session id, password of 16 bytes, may be read-only
        request = struct.pack(">iqiqi16s?", 0, 0, SESSION_MS, 0, 16, b"", False)
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        if not 16 <= size <= 1024:
            raise OSError("what answers is no ZooKeeper")
        _version, granted = struct.unpack(">ii", _exactly(connection, size)[:8])
        connection.sendall(struct.pack(">iii", 8, 1, _CLOSE))
    if granted <= 0:
        raise OSError("it grants no session")
    return granted


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "wait": {"type": "float", "default": 0.0},
            "key": {"type": "path", "no_log": False},
            "authorities": {"type": "path"},
        },
        supports_check_mode=True,
    )
    host, port, wait = (module.params[name] for name in ("host", "port", "wait"))
    started = time.monotonic()
    while True:
        try:
            granted = ask(host, port, module.params["key"], module.params["authorities"])
        except OSError as error:
            waited = time.monotonic() - started
            if waited >= wait:
                module.fail_json(
                    msg=f"ZooKeeper at {host}:{port} does not serve after {wait:g} s: {error}", waited=round(waited, 2)
                )
            time.sleep(POLL_INTERVAL)
        else:
            module.exit_json(changed=False, session_ms=granted, waited=round(time.monotonic() - started, 2))


if __name__ == "__main__":
    main()

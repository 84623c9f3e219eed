"""A UDP socket in a multicast group: brokers and clients hear by it who announces itself."""

from __future__ import annotations

import socket


def receiver(address: str, port: int, local: str | None) -> socket.socket:
    """A socket that receives what is sent to the group, beside others of this machine. Raises OSError.

    ``local``: this machine's address in the network meant; None: the system chooses.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound to the group, so that what is sent to other addresses with this port does not arrive.
        made.bind((address, port))
        membership = socket.inet_aton(address) + socket.inet_aton(local or "0.0.0.0")  # noqa: S104  (see above)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except OSError:
        made.close()
        raise
    return made

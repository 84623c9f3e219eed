"""Other brokers' connections: the core protocol on the broker's side. See docs/core-protocol.md.

* :mod:`pollux.cluster.link.conversation`: one connection, whoever opened it: channels and their handlers
* :mod:`pollux.cluster.link.session`: a connection that another broker opened to an acceptor
"""

from pollux.cluster.link.conversation import Conversation, CoreHub, Handler, Idle
from pollux.cluster.link.session import CoreSession

__all__ = ["Conversation", "CoreHub", "CoreSession", "Handler", "Idle"]

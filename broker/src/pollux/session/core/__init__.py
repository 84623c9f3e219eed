"""Other brokers' connections: the core protocol on the broker's side. See docs/core-protocol.md.

* :mod:`pollux.session.core.conversation`: one connection, whoever opened it: channels and their handlers
* :mod:`pollux.session.core.session`: a connection that another broker opened to an acceptor
"""

from pollux.session.core.conversation import Conversation, CoreHub, Handler
from pollux.session.core.session import CoreSession

__all__ = ["Conversation", "CoreHub", "CoreSession", "Handler"]

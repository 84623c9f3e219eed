"""Sessions of STOMP clients, one for each.

* :mod:`pollux.protocols.stomp.session`: the conversation, frame by frame
* :mod:`pollux.protocols.stomp.phases`: what may follow what in it
* :mod:`pollux.protocols.stomp.conversation`: what its parts use of it
* :mod:`pollux.protocols.stomp.send_plan`: what a SEND frame asks for
* :mod:`pollux.protocols.stomp.subscription`: one SUBSCRIBE and the messages it holds
* :mod:`pollux.protocols.stomp.destinations`: destinations, addresses, queues and routing types
* :mod:`pollux.protocols.stomp.heartbeat`: heart-beating, as values
* :mod:`pollux.protocols.stomp.settings`: the acceptor's parameters
"""

from pollux.protocols.stomp.session import StompSession

__all__ = ["StompSession"]

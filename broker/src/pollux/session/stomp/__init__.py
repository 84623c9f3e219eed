"""What a STOMP client may do: its session on the broker.

* :mod:`pollux.session.stomp.session`: the conversation, frame by frame
* :mod:`pollux.session.stomp.sending`: what a SEND frame asks for
* :mod:`pollux.session.stomp.subscription`: one SUBSCRIBE and the messages it holds
* :mod:`pollux.session.stomp.destinations`: destinations, addresses, queues and routing types
* :mod:`pollux.session.stomp.heartbeat`: heart-beating, as values
* :mod:`pollux.session.stomp.settings`: the acceptor's parameters
"""

from pollux.session.stomp.session import StompSession

__all__ = ["StompSession"]

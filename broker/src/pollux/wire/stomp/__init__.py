"""STOMP 1.0, 1.1 and 1.2 as bytes and values: no I/O, no asyncio, no knowledge of queues.

* :mod:`pollux.wire.stomp.headers`: escaping, header blocks, the versions' differences
* :mod:`pollux.wire.stomp.decoder`: bytes in, frames out; every bound on what a peer may send
* :mod:`pollux.wire.stomp.encoder`: frames and MESSAGE deliveries out
* :mod:`pollux.wire.stomp.content`: the neutral view of a stored message, for selectors and other protocols

The stored form of a STOMP message
----------------------------------
``Message.data`` (and the body of a journal record whose encoding is STOMP, 2) is::

    name ":" value LF  { name ":" value LF }  LF  body

* Every line ends with one LF (0x0A), the last header line too; an empty line separates the headers
  from the body. There is at least one header (``destination``).
* Names and values are UTF-8 with the escapes of STOMP 1.2 (``\\r`` CR, ``\\n`` LF, ``\\c`` colon,
  ``\\\\`` backslash), whatever version the producer spoke: each line holds exactly one colon.
* The headers are the SEND frame's, in its order. Where a name occurs twice the first counts.
  Those that concern only the SEND frame or that the broker sets on delivery are left out:
  ``receipt``, ``transaction``, ``message-id``, ``subscription``, ``ack``, ``redelivered``, ``timestamp``.
  ``content-length`` is kept if and only if the producer gave it; it is then the length of the body.
* The body is the rest of the record, opaque bytes; no NUL ends it. With ``content-length`` it may
  hold NULs, without it holds none.

A large message's file holds the same form; its head in ``Message.data`` is the complete header block
with the separating empty line, and as much of the body as fits.
"""

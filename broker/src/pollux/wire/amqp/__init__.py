"""AMQP 1.0 on the wire: type codec, message sections, SASL layer, frame guard and the proton engine.

Sans-io: bytes in, values and bytes out. Nothing here knows sockets, asyncio, queues or users.
"""

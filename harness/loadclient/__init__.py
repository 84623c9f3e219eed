"""One load client for AMQP 1.0, STOMP and MQTT: raw sockets, pre-encoded frames, one thread, any broker.

It costs far less than a broker does, so that what it reports is the broker's figure: batches of messages leave in one
system call from frames that were encoded before the clock started, and what arrives is counted with strides over the
bytes instead of being decoded frame by frame. It knows nothing of Pollux.
"""

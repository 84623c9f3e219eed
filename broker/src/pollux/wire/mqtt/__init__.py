"""Sans-io codec for MQTT 3.1.1 and MQTT 5 (OASIS). It knows nothing of sockets, sessions or queues.

:mod:`~pollux.wire.mqtt.decoder` (bytes in, packets out), :mod:`~pollux.wire.mqtt.encode` (packets to bytes),
:mod:`~pollux.wire.mqtt.topics` (topics and addresses), :mod:`~pollux.wire.mqtt.stored` (the form in the journal, which
documents it) and :mod:`~pollux.wire.mqtt.content` (the view of it other protocols share).
"""

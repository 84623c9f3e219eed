"""The sessions of connected clients, one package a protocol: amqp, stomp, mqtt."""

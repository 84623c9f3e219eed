"""What a connected client may do, one package a protocol: amqp, stomp, mqtt."""

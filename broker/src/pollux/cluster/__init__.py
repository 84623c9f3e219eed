"""Broker to broker: the conversation (link), who is there (discovery, topology), and votes on who may serve."""

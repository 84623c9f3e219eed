"""WebSocket (RFC 6455), the server's side: the opening handshake and frames. Sans-io."""

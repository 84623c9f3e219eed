"""Sessions of clients on a broker without sockets: post office, store and the protocols' sessions are the real ones.

`office` has post office and store, `broker` what sessions get besides and the broker's end of a connection, `amqp`,
`mqtt` and `stomp` have the clients' ends. In `held` what is on disk, and which addresses are full, is the test's.
"""

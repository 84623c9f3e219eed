"""The core protocol, broker to broker, without input or output. See docs/core-protocol.md.

* :mod:`pollux.wire.core.frames`: bytes to frames and back
* :mod:`pollux.wire.core.peer`: one end of a connection: preambles, mutual proof, heartbeats, channels, credit
"""

from pollux.wire.core.frames import CoreError, Frame, FrameType
from pollux.wire.core.peer import ClusterKey, CorePeer, Hello

__all__ = ["ClusterKey", "CoreError", "CorePeer", "Frame", "FrameType", "Hello"]

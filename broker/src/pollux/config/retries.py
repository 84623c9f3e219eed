"""Elements that all links to other brokers have: how long they wait, and how often they try."""

from typing import Annotated

from pollux.config.kinds import Decimal, Duration

CallTimeout = Annotated[int, Duration(minimum=1), "Wait for an answer."]
ConnectionTtl = Annotated[int, Duration(minimum=1), "Silence after which a connection is dead."]
RetryInterval = Annotated[int, Duration(minimum=1), "Wait between attempts to connect."]
RetryMultiplier = Annotated[float, Decimal(minimum=1.0), "Factor on retry-interval for each attempt."]
MaxRetryInterval = Annotated[int, Duration(minimum=1), "Upper limit of the retry interval."]

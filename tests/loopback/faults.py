"""What a test tells the loopback hub to do wrong, and the record of what the client sent.

tests/loopback_hub.py asks the plan once for every request, before it is answered.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["hub", "storage"]


@dataclass
class Request:
    """One request as it came over the wire.

    Attributes:
        origin: which server it reached: the hub, or the storage behind it that holds the large objects.
        path: the request target, still quoted, with its query.
        headers: by lower-case name.
        body: what arrived of it, which is not all when the connection was cut.
        status: the answer's code; None where the connection was dropped instead.
    """

    origin: Origin
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None = None

    def places(self) -> Iterator[tuple[str, bytes]]:
        """Every part in which a secret must not be: all but the hub's own authorization header."""
        yield "path", self.path.encode()
        yield "body", self.body
        for name, value in self.headers.items():
            if name != "authorization" or self.origin == "storage":
                yield f"header {name}", value.encode("latin-1")


@dataclass
class Fault:
    """One thing to do wrong, to the next `times` requests whose target matches `pattern`.

    Attributes:
        status: answer with this code and change nothing.
        stall: wait so many seconds, then answer as usual.
        cut_after: break the connection after this many bytes of the request's body, or of the answer's body
            when the request has none.
        lose_answer: do what was asked and reset the connection instead of answering.
    """

    pattern: re.Pattern[str]
    method: str | None
    times: int
    status: int | None = None
    stall: float = 0.0
    cut_after: int | None = None
    lose_answer: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class FaultPlan:
    """The faults still to come. Several threads may ask; each fault is handed out exactly `times` times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Plan a fault after those that are already planned."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Forget what has not happened yet."""
        with self._lock:
            self._faults.clear()

    def pending(self) -> int:
        """How many faults have not happened yet: a test asserts 0 to know that its fault did."""
        with self._lock:
            return sum(fault.times for fault in self._faults)

    def take(self, method: str, path: str) -> Fault | None:
        """The fault for this request, counted as spent; the earliest planned one wins."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fault.method in (None, method) and fault.pattern.search(path):
                    fault.times -= 1
                    return fault
        return None

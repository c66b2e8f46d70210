"""The loopback hub's HTTP: reading requests off the socket, doing what the fault plan demands, sending answers.

tests/loopback_hub.py starts two of these servers over one `Backend`: the hub and the storage of large files.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .call import Addresses, RefusedError, Reply
from .faults import Fault, FaultPlan, Origin, Request
from .routes import answer
from .store import Store


@dataclass
class Backend:
    """What the two servers share with each other and with the test.

    Attributes:
        unrouted: requests the hub has no route for, as "METHOD path": a gap here, or a client gone astray.
        errors: tracebacks of requests on which the hub itself broke.
    """

    store: Store = field(default_factory=Store)
    addresses: Addresses = field(default_factory=Addresses)
    plan: FaultPlan = field(default_factory=FaultPlan)
    requests: list[Request] = field(default_factory=list)
    unrouted: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    closing: threading.Event = field(default_factory=threading.Event)

    def reply(self, request: Request) -> Reply:
        """The answer to a request that no fault spoils."""
        with self.lock:
            try:
                found = answer(self.store, self.addresses, request)
            except Exception:  # whatever it is, the client must get an answer and the test must get to see it
                self.errors.append(f"{request.method} {request.path}\n{traceback.format_exc()}")
                return RefusedError(500, "the loopback hub itself failed").reply
            if found is None:
                self.unrouted.append(f"{request.method} {request.path}")
                return RefusedError(404, "the loopback hub has no such route").reply
            return found


def ranged(reply: Reply, wanted: str | None) -> Reply:
    """The part of a file that a Range header requests."""
    if wanted is None or reply.status != 200 or "Accept-Ranges" not in reply.headers:
        return reply
    size = len(reply.body)
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    if match is None or not any(match.groups()):
        return reply  # what is no range is ignored, as HTTP asks
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        return Reply(b"", 416, {"Content-Range": f"bytes */{size}"})
    marks = {**reply.headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    return Reply(reply.body[start:end], 206, marks)


class LoopbackServer(ThreadingHTTPServer):
    """One listening address on 127.0.0.1, on a port of the system's choice."""

    daemon_threads = True  # an idle kept-alive connection must not hold up the end of a test

    def __init__(self, backend: Backend, origin: Origin) -> None:
        self.backend = backend
        self.origin: Origin = origin
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One connection; it may carry many requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise every answer waits for the client's delayed acknowledgement
    server: LoopbackServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing to the terminal: the requests are in the record."""

    def _read(self, limit: int | None) -> bytes:
        """The request's body, or its first `limit` bytes."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(self.headers.get("Content-Length") or 0)
            return self.rfile.read(length if limit is None else min(length, limit))
        parts: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
            if limit is not None and sum(map(len, parts)) >= limit:
                return b"".join(parts)[:limit]
        self.rfile.readline()
        return b"".join(parts)

    def _has_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or int(self.headers.get("Content-Length") or 0) > 0

    def _reset(self) -> None:
        """End the connection as a broken network does: at once, with whatever was on its way lost."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _serve(self) -> None:
        backend = self.server.backend
        fault = backend.plan.take(self.command, self.path)
        cuts_upload = fault is not None and fault.cut_after is not None and self._has_body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.server.origin, self.command, self.path, headers, b"")
        backend.requests.append(request)
        try:
            request.body = self._read(fault.cut_after if fault is not None and cuts_upload else None)
            if cuts_upload:
                self._reset()
                return
            self._answer(backend, request, fault)
        except ConnectionError:  # the client gave up, as it may: what it asked for stays done
            self.close_connection = True

    def _answer(self, backend: Backend, request: Request, fault: Fault | None) -> None:
        if fault is not None and fault.stall:
            backend.closing.wait(fault.stall)
        if fault is not None and fault.status is not None:
            reply = RefusedError(fault.status, "an injected fault", headers=fault.headers).reply
        else:
            reply = ranged(backend.reply(request), request.headers.get("range"))
        if fault is not None and fault.lose_answer:
            self._reset()
            return
        request.status = reply.status
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, re.sub(r"[^\x20-\x7e]", "?", value))
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if request.method == "HEAD":
            return
        if fault is not None and fault.cut_after is not None:
            self.wfile.write(reply.body[: fault.cut_after])
            self.wfile.flush()
            # A reset would also throw away what was just sent, and a download is to be cut in its middle.
            self.close_connection = True
            return
        self.wfile.write(reply.body)

    # The names under which http.server looks for a method's handler.
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

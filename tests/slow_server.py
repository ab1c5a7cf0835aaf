"""A server on the wire of SGLang's /generate that answers when it is told to: for stops and for what is seen meanwhile.

It injects slowness alone; what a server really says is tested on the real one.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STOP = 163586
OUTPUT_IDS = [1008, 163607, 5, STOP]


class SlowServer(ThreadingHTTPServer):
    """Answers the first `quick` requests at once and holds the others until they are aborted or let go."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, quick: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.quick = quick
        self.asked: list[str] = []  # request ids, in the order they came
        self.held: dict[str, threading.Event] = {}
        self.aborted: set[str] = set()
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def let_go(self, rid: str, *, aborted: bool = False) -> None:
        """Answer a held request; as aborted where that is asked."""
        with self.guard:
            if aborted:
                self.aborted.add(rid)
            event = self.held.get(rid)
        if event:
            event.set()

    def wait_for_held(self, count: int) -> None:
        """Until so many requests are held; fails after a minute."""
        pause = threading.Event()
        for _ in range(1200):
            if len(self.held) >= count:
                return
            pause.wait(0.05)
        raise AssertionError(f"{len(self.held)} requests are held, expected {count}")


class _Handler(BaseHTTPRequestHandler):
    server: SlowServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        facts = {"/model_info": {"model_path": "slow", "weight_version": "default"}, "/server_info": {}}
        self.send(facts[self.path]) if self.path in facts else self.send({}, status=404)

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/abort_request":
            self.server.let_go(sent["rid"], aborted=True)
            self.send({})
            return
        server, rid = self.server, sent["rid"]
        with server.guard:
            server.asked.append(rid)
            event = server.held[rid] = threading.Event()
            if len(server.asked) <= server.quick:
                del server.held[rid]
                event.set()
        event.wait(300)
        reason = {"type": "abort", "message": "aborted"} if rid in server.aborted else {"type": "stop", "matched": STOP}
        meta = {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": len(sent["input_ids"]),
            "completion_tokens": len(OUTPUT_IDS),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        try:
            self.send({"text": "", "output_ids": OUTPUT_IDS, "meta_info": meta})
        except OSError:  # the client has gone
            self.close_connection = True

    def send(self, answer: object, *, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def slow_server(*, quick: int) -> Iterator[SlowServer]:
    """The server, running; what it still holds is let go at the end."""
    with SlowServer(quick) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            for rid in list(server.held):
                server.let_go(rid)
            server.shutdown()
            thread.join()

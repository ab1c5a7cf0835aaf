"""What capturing costs the client: the whole path beside plain httpx, the openai client and a bare wire-speed loop.

A server in a process of its own, on another core, gives the same answer to everything, at once or after 200 ms. It is
an asyncio.Protocol on uvloop that writes precomputed bytes; where it is the bottleneck its core is at 100 %, which the
last column shows. Every cell is a client process of its own, so that its processor time and its memory are its own.
Prompts are 1,000 ids long. `limit` is the limit: it sends the same bytes over a bare connection and decodes the JSON,
the ids left as text; `aiohttp` does so over aiohttp on uvloop, the quickest library that hangs up where a request is
cancelled. Both keep nothing and check nothing. A client that has no answer when its time is over goes on until its
first one. At the end targets are held against what was measured; on a machine that is busy, or has one core, they say
nothing.

    python tests/benchmarks/bench_client.py            # three to four minutes on two idle cores
    python tests/benchmarks/bench_client.py --full     # every client at every length and window
    python tests/benchmarks/bench_client.py --prompts 1000000   # memory over a million prompts
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, cast

import aiohttp
import httpx
import msgspec
import numpy as np
import openai
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from rawtokens.generation import Target, generate
from rawtokens.records import PROMPTS_SCHEMA, Sampling

STOP, VOCABULARY, PROMPT_IDS = 163586, 163840, 1000
SECONDS = 3.0  # how long a client that never ends is measured
FIRST_SECONDS = 20.0  # how long its first answer is waited for
CELL_SECONDS = 120.0  # how long one cell may take
DELAY = 0.2
ROUNDS = 20  # answers a connection on the delayed server: connecting and the first block of prompts are a part of it
LOOPS, PEERS = ("limit", "aiohttp"), ("httpx", "openai")
EMPTY = {"messages": "[]", "tools": "[]", "template_kwargs": "{}"}
CLIENTS = (*LOOPS, "rawtokens", *PEERS)
MOST_CPU, MOST_MEMORY, LEAST_SHARE = 0.08, 200.0, 0.95


class Measured(NamedTuple):
    """One client in one cell: answers a second, CPU seconds per million ids, MB grown, share of the ceiling."""

    rate: float
    cost: float
    memory: float
    share: float


def answers(ids: int, prompt_ids: int) -> dict[str, bytes]:
    """The HTTP answers by kind of route: SGLang's, and a completion of the same size."""
    drawn = [*random.Random(7).choices(range(VOCABULARY), k=ids - 1), STOP]
    text = ",".join(map(str, drawn))
    meta = f'"id":"","finish_reason":{{"type":"stop","matched":{STOP}}},"prompt_tokens":{prompt_ids},'
    meta += f'"weight_version":"default","completion_tokens":{ids},"cached_tokens":0,"e2e_latency":1.25'
    native = f'{{"text":"","output_ids":[{text}],"meta_info":{{{meta}}}}}'
    choice = f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":"stop"}}'
    usage = f'{{"prompt_tokens":{prompt_ids},"completion_tokens":{ids},"total_tokens":{prompt_ids + ids}}}'
    completion = f'{{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{choice}],"usage":{usage}}}'
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    return {kind: (head.format(len(body)) + body).encode() for kind, body in (("g", native), ("v", completion))}


class Server(asyncio.Protocol):
    """Answers every request on a connection, one after the other."""

    replies: dict[str, bytes]
    delay: float

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.received, self.missing = b"", 0

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.missing:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.received[:end].lower()
            at = head.index(b"content-length:") + 15
            self.missing = end + 4 + int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None])
        if len(self.received) < self.missing:
            return
        reply = self.replies[chr(self.received[6])]  # POST /g.. or POST /v..
        self.received, self.missing = self.received[self.missing :], 0
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, self.give, reply)
        else:
            self.give(reply)

    def give(self, reply: bytes) -> None:
        if not self.transport.is_closing():  # a client whose time is over has hung up
            self.transport.write(reply)


async def serve(ids: int, prompt_ids: int, delay: float) -> None:
    Server.replies, Server.delay = answers(ids, prompt_ids), delay
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Wire(asyncio.Protocol):
    """The bare loop's connection: send, take the whole answer, decode, again until the time is over."""

    def __init__(self, request: bytes, until: float, decode: Callable[[bytes], object]) -> None:
        self.request, self.until, self.decode = request, until, decode
        self.count, self.parts, self.missing = 0, list[bytes](), 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.parts:
            end = data.index(b"\r\n\r\n") + 4
            self.missing = int(data[data.index(b"Content-Length: ") + 16 : end - 4])
            data = data[end:]
        self.parts.append(data)
        self.missing -= len(data)
        if self.missing > 0:
            return
        self.decode(b"".join(self.parts))
        self.parts.clear()
        self.count += 1
        if time.monotonic() < self.until:
            self.transport.write(self.request)
        else:
            self.transport.close()
            self.ended.set_result(None)


class Meta(msgspec.Struct):
    finish_reason: dict[str, str | int]
    prompt_tokens: int
    completion_tokens: int


class Body(msgspec.Struct):
    output_ids: msgspec.Raw
    meta_info: Meta


def body_of(prompt_ids: int) -> bytes:
    ids = random.Random(1).choices(range(VOCABULARY), k=prompt_ids)
    return msgspec.json.encode({"input_ids": ids, "sampling_params": {"max_new_tokens": 1}, "rid": "0" * 32})


async def limit(port: int, window: int, prompt_ids: int) -> int:
    body, decode, until = body_of(prompt_ids), msgspec.json.Decoder(Body).decode, time.monotonic() + SECONDS
    request = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    made = [
        asyncio.get_running_loop().create_connection(lambda: Wire(request, until, decode), "127.0.0.1", port)
        for _ in range(window)
    ]
    wires = [wire for _, wire in await asyncio.gather(*made)]
    await asyncio.gather(*[wire.ended for wire in wires])
    return sum(wire.count for wire in wires)


async def until_the_time_is_over(window: int, ask: Callable[[], Awaitable[object]]) -> int:
    """How many requests `window` workers finish in SECONDS, or until the first is finished."""
    count, first = 0, asyncio.Event()

    async def work() -> None:
        nonlocal count
        while True:
            await ask()
            count += 1
            first.set()

    workers = [asyncio.create_task(work()) for _ in range(window)]
    await asyncio.wait(workers, timeout=SECONDS)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(first.wait(), FIRST_SECONDS)
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers, timeout=5.0)
    return count


async def bare_aiohttp(port: int, window: int, prompt_ids: int) -> int:
    body, url, decode = body_of(prompt_ids), f"http://127.0.0.1:{port}/generate", msgspec.json.Decoder(Body).decode
    connector, cookies = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies, read_bufsize=2**20) as session:

        async def ask() -> object:
            async with session.post(url, data=body) as reply:
                return decode(await reply.read())

        return await until_the_time_is_over(window, ask)


async def plain_httpx(port: int, window: int, prompt_ids: int) -> int:
    body, url = body_of(prompt_ids), f"http://127.0.0.1:{port}/generate"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def ask() -> object:
            return (await client.post(url, content=body)).json()

        return await until_the_time_is_over(window, ask)


async def openai_client(port: int, window: int, prompt_ids: int) -> int:
    ids = random.Random(1).choices(range(VOCABULARY), k=prompt_ids)
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=3600) as client:
        return await until_the_time_is_over(
            window, lambda: client.completions.create(model="m", prompt=ids, max_tokens=1)
        )


def write_prompts(folder: Path, count: int, prompt_ids: int) -> None:
    """`count` prompts of random ids, a thousand rows at a time."""
    drawn = np.random.default_rng(1)
    ids_type, notices = PROMPTS_SCHEMA.field("prompt_ids").type, PROMPTS_SCHEMA.field("notices").type
    with pq.ParquetWriter(folder / "prompts.parquet", PROMPTS_SCHEMA, compression="zstd", use_dictionary=False) as file:
        for start in range(0, count, 1000):
            rows = range(start, min(count, start + 1000))
            ids = drawn.integers(0, VOCABULARY, len(rows) * prompt_ids, dtype=np.int32)
            columns = {
                "key": [f"{row}#0" for row in rows],
                "source_id": [str(row) for row in rows],
                "turn": [0] * len(rows),
                "prompt_ids": pa.ListArray.from_arrays(
                    pa.array(range(0, len(ids) + 1, prompt_ids), type=pa.int32()), pa.array(ids), type=ids_type
                ),
                "prompt_tokens": [prompt_ids] * len(rows),
                "thinking": ["opened"] * len(rows),
                **{name: [text] * len(rows) for name, text in EMPTY.items()},
                "notices": pa.array([[]] * len(rows), type=notices),
                "later": [None] * len(rows),
            }
            file.write_table(pa.table(columns, schema=PROMPTS_SCHEMA))


async def whole_path(port: int, window: int, folder: Path) -> int:
    url = f"http://127.0.0.1:{port}"
    target = Target(
        urls=(url,),
        sampling=Sampling(max_new_tokens=2**15),
        stop_ids=(STOP,),
        vocabulary_size=VOCABULARY,
        fingerprint="0" * 16,
    )
    progress = await generate(folder, target, window=window)
    assert (progress.done, progress.rejected, dict(progress.failures)) == (progress.planned, 0, {})
    return progress.done


def memory(field: str) -> int:
    """This process's VmRSS or VmHWM in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def measure(client: str, port: int, window: int, prompt_ids: int, folder: Path) -> None:
    """Run one client and print its numbers as JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    imported, before, started = memory("VmRSS"), time.process_time(), time.monotonic()
    if client == "rawtokens":
        count = asyncio.run(whole_path(port, window, folder))  # brings its own uvloop, beside a loop like a kernel's
    elif client in LOOPS:
        count = uvloop.run({"limit": limit, "aiohttp": bare_aiohttp}[client](port, window, prompt_ids))
    else:
        count = asyncio.run({"httpx": plain_httpx, "openai": openai_client}[client](port, window, prompt_ids))
    seconds = time.monotonic() - started
    grown = memory("VmHWM") - imported
    print(json.dumps({"count": count, "seconds": seconds, "cpu": time.process_time() - before, "memory": grown}))


@contextlib.contextmanager
def running_server(ids: int, prompt_ids: int, delay: float) -> Iterator[tuple[int, int]]:
    """A server's port and process id."""
    arguments = [sys.executable, __file__, "--serve", str(ids), str(prompt_ids), str(delay)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_client(
    client: str, window: int, ids: int, delay: float, *, prompts: int, prompt_ids: int, seconds: float
) -> tuple[dict[str, float], float] | str:
    """What one client measured of itself, and the share of its core that the server used; or why there is none."""
    with tempfile.TemporaryDirectory() as name, running_server(ids, prompt_ids, delay) as (port, pid):
        if client == "rawtokens":
            write_prompts(Path(name), prompts, prompt_ids)
        arguments = [sys.executable, __file__, "--client", client, str(port), str(window), str(prompt_ids), name]
        before, started = cpu_seconds(pid), time.monotonic()
        try:
            ran = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"not through in {seconds:.0f} s"
        if ran.returncode:
            return f"failed with exit code {ran.returncode}"
        found: dict[str, float] = json.loads(ran.stdout)
        if not found["count"]:
            return f"no answer in {found['seconds']:.0f} s"
        return found, (cpu_seconds(pid) - before) / min(found["seconds"], time.monotonic() - started)


def cell(
    clients: Sequence[str],
    window: int,
    ids: int,
    delay: float,
    *,
    prompts: int,
    prompt_ids: int = PROMPT_IDS,
    seconds: float = CELL_SECONDS,
) -> dict[str, Measured]:
    """Measure clients against one kind of server, one after the other, and print a line each.

    `x limit` is processor time in that of the first of `clients`.
    """
    least, results = 0.0, dict[str, Measured]()
    for client in clients:
        print(f"{ids:>6,} {window:>6,} {'200 ms' if delay else 'instant':>8} {client:<10} ", end="", flush=True)
        measured = run_client(client, window, ids, delay, prompts=prompts, prompt_ids=prompt_ids, seconds=seconds)
        if isinstance(measured, str):
            print(measured, flush=True)
            continue
        found, busy = measured
        rate, millions = found["count"] / found["seconds"], found["count"] * ids / 1e6
        cost = found["cpu"] / millions
        least = least or cost
        share = f"{rate * delay / window:8.1%}" if delay else "       -"
        results[client] = Measured(rate, cost, found["memory"] / 1e6, rate * delay / window)
        print(
            f"{rate:>10,.1f} {cost:>11.4f} {cost / least:>7.1f} {found['memory'] / 1e6 / millions:>11.3f} "
            f"{found['memory'] / 1e6:>8,.0f} {share} {busy:>7.0%}",
            flush=True,
        )
    return results


def told_targets(found: Mapping[tuple[int, int, float], Measured]) -> None:
    """Hold the whole path's figures, by ids, window and delay, against the targets."""
    if usual := found.get((4096, 256, 0.0)):
        told(f"at most {MOST_CPU} CPU s per million ids of 4,096-id answers, 256 in flight", usual.cost <= MOST_CPU)
    if wide := [(ids, one) for (ids, window, delay), one in found.items() if delay and window == 1024]:
        for ids, one in wide:
            most = 1e6 / ids / one.cost  # answers a second that one core has time for
            asked = f"{LEAST_SHARE:.0%} of the ceiling at 1,024 in flight, {ids:,} ids, 200 ms"
            told(
                f"{asked} ({one.share:.1%}; one core has time for {most * DELAY / 1024:.1%})", one.share >= LEAST_SHARE
            )


def told(target: str, met: bool) -> None:
    print(f"{'met   ' if met else 'missed'} {target}", flush=True)


def pin() -> None:
    """Clients on the first core, servers on the last, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if "--serve" in sys.argv else cores[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every length at every window")
    parser.add_argument(
        "--prompts", type=int, default=0, help="only the whole path over so many prompts, for its memory"
    )
    parser.add_argument("--only", choices=CLIENTS, help="only this client")
    parser.add_argument("--serve", nargs=3, metavar=("IDS", "PROMPT_IDS", "DELAY"), help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        pin()
        uvloop.run(serve(int(given.serve[0]), int(given.serve[1]), float(given.serve[2])))
        return
    if given.client:
        pin()
        client, port, window, prompt_ids, folder = given.client
        measure(client, int(port), int(window), int(prompt_ids), Path(folder))
        return
    print(
        f"{platform.platform()}, Python {platform.python_version()}, aiohttp {aiohttp.__version__}, uvloop "
        f"{metadata.version('uvloop')}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} "
        "(only an idle machine gives absolute figures)"
    )
    print(
        "   ids window   server client     requests/s CPU s/M ids x limit MB/M ids    MB grown  ceiling  server's core"
    )
    if given.prompts:
        seconds = given.prompts / 50 + 600
        results = cell(["rawtokens"], 256, 16, 0.0, prompts=given.prompts, prompt_ids=32, seconds=seconds)
        if "rawtokens" in results:
            grown = results["rawtokens"].memory
            told(f"under {MOST_MEMORY:.0f} MB over the imports ({grown:.0f} MB)", grown < MOST_MEMORY)
        return
    found: dict[tuple[int, int, float], Measured] = {}
    lengths, sizes = (512, 4096, 16384), (64, 256, 1024)
    for delay in (0.0, DELAY):
        for ids in lengths:
            for window in sizes:
                usual = (ids, window) == (4096, 256)
                if not (given.full or usual or (ids, window) in ((512, 1024), (4096, 1024), (16384, 256))):
                    continue
                clients = [given.only] if given.only else CLIENTS if given.full or usual else CLIENTS[:3]
                prompts = ROUNDS * window if delay else min(20_000, 24_000_000 // ids)
                results = cell(clients, window, ids, delay, prompts=prompts)
                if "rawtokens" in results:
                    found[ids, window, delay] = results["rawtokens"]
    if found:
        told_targets(found)


if __name__ == "__main__":
    main()

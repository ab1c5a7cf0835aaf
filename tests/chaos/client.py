"""One capture as notebook 02 makes it, in a process that can be killed and without a kernel, which takes seconds more.

Exit codes are the command's. This script does not know what is done to it.
"""

import argparse
import asyncio
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from rawtokens import runs
from rawtokens.capture import server_facts, servers
from rawtokens.errors import RawTokensError
from rawtokens.generation import Target, generate
from rawtokens.records import Sampling


async def capture(options: argparse.Namespace) -> None:
    """Generate what is missing, greedily."""
    tokenized = runs.read_tokenized(options.folder)
    sampling = Sampling(temperature=0.0, max_new_tokens=options.max_new_tokens)
    runs.guard_sampling(options.folder, sampling)
    urls = tuple(options.url)
    facts = await server_facts.all_facts(urls)
    target = Target(
        urls=urls,
        sampling=sampling,
        stop_ids=tokenized.stop_ids,
        vocabulary_size=tokenized.vocabulary_size,
        fingerprint=runs.record_generating(options.folder, facts[urls[0]], sampling),
        facts=facts[urls[0]],
        drain_seconds=2.0,
    )
    print(await generate(options.folder, target, window=options.window))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--read-timeout", type=float, help="seconds; the client's own is minutes")
    parser.add_argument("--largest-file", type=int, help="bytes; a write beyond is cut short, as on a full disk")
    options = parser.parse_args(arguments)
    if options.largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.largest_file, resource.RLIM_INFINITY))
    if options.read_timeout:
        mock.patch.object(servers.Server, "patience", return_value=options.read_timeout).start()
    try:
        asyncio.run(capture(options))
    except RawTokensError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    return 0

"""The body of `rawtokens check-server`: the table of checks, with the golden question where it is asked for.

This module does not know what is checked.
"""

import asyncio

from ..addresses import api_key_from, server_urls
from ..target.target_tokenizer import load_tokenizer, template_arguments
from .golden import ask_golden, segment_lines
from .server_check import check_server, checks_takeaway, checks_text, require_no_failure


def check_and_print(
    address: str,
    *,
    tokenizer: str,
    revision: str = "",
    trust_remote_code: bool = False,
    prompt_encoder: str = "",
    markers: str = "",
    api_key_env: str = "",
    template_kwargs: str = "{}",
    with_golden: bool = False,
) -> None:
    """Check the server and print what was seen; arguments are the command's, as text.

    Raises what `load_tokenizer` and `require_no_failure` raise, and InputError for an address or a key that is none.
    """
    (url,) = server_urls([address])
    key = api_key_from(api_key_env)
    arguments = template_arguments(template_kwargs)
    target = load_tokenizer(
        tokenizer,
        revision=revision,
        trust_remote_code=trust_remote_code,
        prompt_encoder=prompt_encoder,
        markers=markers,
    )
    checks = asyncio.run(check_server(url, target, template_kwargs=arguments, api_key=key))
    lines: list[str] = []
    if with_golden:
        golden = asyncio.run(ask_golden(url, target, template_kwargs=arguments, api_key=key))
        checks += golden.checks
        lines = segment_lines(golden, target, api_key=key)
    print("\n".join([checks_text(checks), *lines, checks_takeaway(checks)]))
    require_no_failure(url, checks, table_is_shown=True)

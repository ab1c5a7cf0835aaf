"""What can be wrong or remarkable with a response: one boolean a row under each reason's name.

The policy says what a reason makes of a row. Nothing is repaired. This module does not know text; whether an answer
is right is none of its business.
"""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..capture.known_keys import KnownKeys
from ..errors import InputError
from ..records import Shape, Verdict
from .repetition import all_equal, loops
from .response_columns import IdLists, ResponseColumns
from .segments import Bools, Segments

SEVERITY: tuple[Verdict, ...] = get_args(Verdict)

DEFAULT_POLICY: dict[str, Verdict] = {
    "empty": "reject",  # nothing but a stop id, or nothing at all
    "stop_missing": "reject",  # the server matched a stop id that is not the last id: a wrapper stripped it
    "stop_in_middle": "reject",  # the turn end, or the matched id, before the end
    "prompt_changed": "reject",  # other prompt ids than prompts.parquet has under this key
    "prompt_unknown": "reject",  # prompts.parquet has no such key
    "fingerprints_mixed": "reject",  # made with other settings than most of the run
    "key_repeated": "reject",  # an earlier row has this key
    "all_equal_ids": "reject",  # one id, at least 8 times: NaN weights give this
    "count_mismatch": "reject",  # the server counted other numbers of ids than stand here
    "id_out_of_vocabulary": "reject",  # prompt or output
    "stop_not_shown": "flag",  # ended by itself, no matched id named, and the last id ends no turn
    "never_closed": "flag",
    "closer_repeated": "flag",  # a closer after the first, or any where the prompt had closed the thinking
    "opener_in_output": "flag",  # where the prompt had opened or closed already, or a second one
    "open_tool_section": "flag",  # outside thinking: a section, call or message begun and not ended, or the reverse
    "role_id_in_output": "flag",
    "loop": "flag",  # repetition.repeated_share of at least 0.75
    "empty_answer": "flag",  # ended by itself after thinking, with neither answer nor call
    "truncated_in_thinking": "flag",
    "truncated_in_answer": "flag",
    "tool_section_in_thinking": "accept",  # drafted: a closer came after it
}
"""What each reason makes of a row; the names and their order are those of `reasons` in verified.parquet."""


POLICY = b"policy"
"""The metadata of verified.parquet that holds the policy of its verdicts, as JSON."""


def policy_of(schema: pa.Schema) -> dict[str, Verdict]:
    """The policy by which the rows of a verified.parquet got their verdicts; the default where it does not tell."""
    return policy_from((schema.metadata or {}).get(POLICY, b"{}").decode())


def complete_policy(policy: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """`policy` with the defaults for reasons that it leaves out. Raises InputError for an unknown name or verdict."""
    for reason, verdict in policy.items():
        if reason not in DEFAULT_POLICY:
            raise InputError(f"policy: reason {reason!r} is not known; known: {', '.join(DEFAULT_POLICY)}")
        if verdict not in SEVERITY:
            raise InputError(f"policy: {reason}: verdict {verdict!r} must be one of {', '.join(SEVERITY)}")
    return {**DEFAULT_POLICY, **policy}


def policy_from(text: str) -> dict[str, Verdict]:
    """A notebook's parameter, a JSON object from reason to verdict, completed. Raises as `complete_policy` does."""
    try:
        given = msgspec.json.decode(text or "{}", type=dict[str, Verdict])
    except msgspec.MsgspecError as error:
        raise InputError(f'policy is {text!r}: {error}; expected JSON like {{"loop": "accept"}}') from error
    return complete_policy(given)


def shapes_of(segments: Segments, truncated: Bools) -> NDArray[np.str_]:
    """The records.Shape of each row; `truncated` where the length limit ended it."""
    order: list[tuple[Shape, Bools]] = [
        ("truncated_in_thinking", truncated & segments.in_reasoning),
        ("truncated_in_answer", truncated),
        ("channels", segments.in_channels),
        ("thinking_off", segments.thinking_off),
        ("tool_closed", segments.tool_closed),
        ("closed", segments.closers > 0),
    ]
    default: Shape = "never_closed"
    return np.select([mask for _, mask in order], [np.str_(shape) for shape, _ in order], default=np.str_(default))


def reasons_of_ids(columns: ResponseColumns, segments: Segments, shapes: NDArray[np.str_]) -> dict[str, Bools]:
    """What the ids, their counts and the finish reason show by themselves."""
    prompts, outputs = columns.prompts, columns.outputs
    named = columns.matched_ids >= 0
    stopped = np.array(columns.finish_reasons, dtype=np.str_) == "stop"
    nothing_said = segments.nothing_said & (segments.body_tokens > 0)
    return {
        "empty": segments.body_tokens == 0,
        "stop_missing": stopped & named & (outputs.last_ids() != columns.matched_ids),
        "stop_in_middle": segments.inner_stop,
        "stop_not_shown": stopped & columns.unmatched & ~segments.ends_with_stop & (outputs.lengths > 0),
        "all_equal_ids": all_equal(outputs, segments.body_tokens),
        "count_mismatch": (columns.prompt_tokens != prompts.lengths) | (columns.completion_tokens != outputs.lengths),
        "never_closed": shapes == "never_closed",
        "closer_repeated": segments.closers > np.where(segments.thinking_off, 0, 1),
        "opener_in_output": segments.unexpected_opener,
        "open_tool_section": segments.unbalanced_section,
        "role_id_in_output": segments.inner_role,
        "loop": loops(outputs, segments.body_tokens),
        "empty_answer": nothing_said & np.isin(shapes, ["closed", "tool_closed", "thinking_off", "channels"]),
        "truncated_in_thinking": shapes == "truncated_in_thinking",
        "truncated_in_answer": shapes == "truncated_in_answer",
        "tool_section_in_thinking": segments.drafted_section,
    }


def reasons_of_keys(
    columns: ResponseColumns, known_prompts: Mapping[str, bytes], earlier_keys: KnownKeys
) -> dict[str, Bools]:
    """What a row's key shows; a prompt's key is a response's up to its last slash, or the whole of a later turn's."""
    first = {key: row for row, key in reversed([*enumerate(columns.keys)])}
    here = np.array([first[key] != row for row, key in enumerate(columns.keys)], dtype=np.bool_)
    known = [known_prompts.get(key.rpartition("/")[0]) or known_prompts.get(key) for key in columns.keys]
    pairs = zip(known, prompt_digests(columns.prompts), strict=True)
    return {
        "prompt_unknown": np.array([digest is None for digest in known], dtype=np.bool_),
        "prompt_changed": np.array([digest is not None and digest != own for digest, own in pairs], dtype=np.bool_),
        "key_repeated": here | earlier_keys.contains_each(columns.keys),
    }


def prompt_digests(prompts: IdLists) -> list[bytes]:
    """16 bytes a row that stand for its ids; for comparing within one process only (the machine's byte order)."""
    content = np.ascontiguousarray(prompts.ids).view(np.uint8).data
    ends = (prompts.offsets * prompts.ids.itemsize).tolist()
    hashed = (hashlib.sha256(content[start:end]) for start, end in pairwise(ends))  # 2.5 us for 966 ids, blake2b 11
    return [whole.digest()[:16] for whole in hashed]

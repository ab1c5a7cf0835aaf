"""Inside a tool cycle: the ids that the template puts behind an answer, found as the difference of two renders.

The next prompt is `prompt_ids + output_ids + suffix`, so that everything that was sampled stays as sampled. The suffix
is what the render with the tools' results has behind the end of the answer that the render without them ends with. It
is taken only where both renders agree up to there and it begins at an id of its own. Where the template's own render of
what stands before the suffix is other than what was sampled, that is told and not used. This module does not know
where results come from.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ..errors import one_line
from ..records import Json
from ..target.id_bytes import IdBytes, first_difference
from .history import Ended, render_history

SHOWN = 8
"""Ids of a difference."""


class Suffix(msgspec.Struct, frozen=True, kw_only=True):
    """The ids behind an answer; `differs_at` is the first place of the next prompt where the template's render differs.

    It is None where the render of the whole conversation is that prompt, id by id. `template_ids` are the render's at
    that place, SHOWN at the most.
    """

    ids: list[int]
    differs_at: int | None
    template_ids: list[int]


def find_suffix(
    sampled: Sequence[int],
    rendered: Sequence[int],
    history: Sequence[Mapping[str, Json]],
    table: IdBytes,
    *,
    tools: Sequence[Mapping[str, Json]],
    template_kwargs: Mapping[str, Json],
) -> Suffix | Ended:
    """What stands behind `sampled` (prompt and output, ending with the stop id) in the next prompt.

    `rendered` are the ids that apply_chat_template gives for the conversation with the results and the generation
    prompt; `history` is that conversation up to the answer. Reasons: suffix_not_proved, stop_differs.
    """
    tokenizer = table.tokenizer
    if tokenizer.prompt_encoder is not None:
        return Ended("suffix_not_proved", "a prompt encoder renders no conversation without generation prompt")
    try:
        text = render_history(tokenizer, history, tools=tools, template_kwargs=template_kwargs)
        before = table.joined(tokenizer.encode([text])[0])
    except Exception as error:  # a template's filters: whatever it is, it is this row's
        return Ended("suffix_not_proved", f"the template refuses a conversation that ends here: {one_line(error)}")
    after, stop = table.joined(rendered), table.pieces[sampled[-1]]
    ended = before.rstrip(b" \n")
    stops_itself = ended.endswith(stop)
    head = ended if stops_itself else before
    end = _end_in(after, head, table)
    if end is None:
        return Ended("suffix_not_proved", "the answer is rendered otherwise once its results follow")
    if not stops_itself:  # the template has no stop of its own here: what was sampled must be what follows
        if not after.startswith(stop, end):
            shown = after[end : end + 40].decode(errors="replace")
            return Ended(
                "stop_differs", f"the answer ended with {stop.decode()!r}, the template goes on with {shown!r}"
            )
        end += len(stop)
    ends = np.cumsum(table.lengths[np.array(rendered, dtype=np.int64)])
    place = int(np.searchsorted(ends, end, side="right"))
    if end == len(after) or (place and ends[place - 1] != end):
        return Ended("suffix_not_proved", "no id of its own begins where the answer ends")
    suffix = list(rendered[place:])
    whole = [*sampled, *suffix]
    differs_at = first_difference(whole, list(rendered))
    if differs_at == len(whole) == len(rendered):
        return Suffix(ids=suffix, differs_at=None, template_ids=[])
    return Suffix(ids=suffix, differs_at=differs_at, template_ids=list(rendered[differs_at : differs_at + SHOWN]))


def _end_in(after: bytes, head: bytes, table: IdBytes) -> int | None:
    """Where the answer that `head` ends with ends in `after`; None where that is not plain.

    A template may render the last message otherwise than one that results follow (Qwen3's writes an empty thinking
    there): then its last call, to its end, must stand in both as often.
    """
    if after.startswith(head):
        return len(head)
    begin = table.joined(table.tokenizer.markers.tool_call_begin)
    start = head.rfind(begin) if begin else -1
    if start < 0:
        return None
    call = head[start:]
    return after.rfind(call) + len(call) if after.count(call) == head.count(call) else None

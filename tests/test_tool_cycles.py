"""The demo's conversations: whole cycles in a published layout, and the file that is committed."""

import json
from collections import Counter
from pathlib import Path

from rawtokens.conversations import read_conversations
from rawtokens.demo.prompts import PROMPTS
from rawtokens.demo.tool_cycles import THANKS, TOOL_CYCLES, conversation_rows, write_tool_cycles
from rawtokens.records import Conversation
from rawtokens.turns.script import expected_turns, read_script


def test_the_committed_file_is_what_the_generator_writes(tmp_path: Path) -> None:
    write_tool_cycles(tmp_path)
    assert (tmp_path / TOOL_CYCLES).read_bytes() == (PROMPTS / TOOL_CYCLES).read_bytes()


def test_every_row_is_read_as_a_conversation_of_several_turns() -> None:
    found = list(read_conversations(PROMPTS / TOOL_CYCLES, turns="each"))
    conversations = [row for row in found if isinstance(row, Conversation)]
    assert len(found) == len(conversations) == 36
    assert not any(row.notices for row in conversations)
    turns = Counter(expected_turns(row.later or ()) for row in conversations)
    assert turns == {2: 4, 4: 14, 5: 5, 6: 12, 7: 1}
    calls = [call for row in conversations for part in read_script(row.later or ()) for call in part.calls]
    assert all(call.result is not None for call in calls)
    assert any(len(part.calls) == 2 for row in conversations for part in read_script(row.later or ()))


def test_calls_have_kimi_s_ids_counted_over_the_conversation() -> None:
    for row in conversation_rows():
        messages = json.loads(json.dumps(row["messages"]))
        calls = [call for message in messages for call in message.get("tool_calls") or []]
        assert [call["id"].rpartition(":")[2] for call in calls] == [str(place) for place in range(len(calls))]
        assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == [
            call["id"] for call in calls
        ]


def test_some_conversations_close_with_thanks() -> None:
    last = [json.loads(json.dumps(row["messages"]))[-2]["content"] for row in conversation_rows()]
    assert last.count(THANKS) == 6

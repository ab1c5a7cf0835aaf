"""What each arm trains on: the capture as it was exported, and what others would have made of the same rows.

Every arm begins with the rows of the export and keeps their prompts. What becomes of the output is all that differs;
the mask is 1 on whatever stands behind the prompt. Re-rendering reads an output as a chat server does: white space at
both ends of reasoning and content goes, a call's arguments become an object. A row that can't be read so is left out
with a reason. This module does not know how a head is trained.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from ..demo.dialogue_record import Dialogue, Piece
from ..errors import InputError, one_line
from ..fidelity.audit_rows import prompt_key, read_conversations, read_rows
from ..fidelity.drift import retokenise
from ..fidelity.replies import Unread, read_reply
from ..records import Conversation, Json
from ..reporting.samples import Sample
from ..target.id_bytes import IdBytes
from ..target.target_tokenizer import Tokenizer
from .forms import MAX_NEW_TOKENS
from .other_author import other_reply
from .questions import number_of

FINISHED_ONLY = "loop.index0 > finished.until"
"""The template's condition for writing a turn's reasoning: that the turn is not finished."""


class ArmRow(msgspec.Struct, frozen=True, kw_only=True):
    """A training row: ids and mask of equal length."""

    id: str
    input_ids: list[int]
    loss_mask: list[int]

    @property
    def supervised(self) -> int:
        """How many ids the mask has a 1 on."""
        return sum(self.loss_mask)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of an arm in the prompts' order, and how many were left out for which reason."""

    rows: list[ArmRow]
    left_out: dict[str, int] = {}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What arms are made from: the capture's folder, its rows as exported, the dialogues by number."""

    folder: Path
    exported: list[ArmRow]
    tokenizer: Tokenizer
    dialogues: Sequence[Dialogue]


def make_arm(name: str, source: Source) -> Arm:
    """The rows of an arm, by its name in forms.ARMS."""
    if name == "verbatim":
        return Arm(rows=_in_order(source.exported))
    if name == "late_mask":
        return Arm(rows=[_begun_late(row) for row in _in_order(source.exported)])
    outputs = _OUTPUTS[name]
    rows, left_out = [], Counter[str]()
    prompts = {row.id: row for row in source.exported}
    for sample, made in outputs(source, list(_samples(source, prompts))):
        if isinstance(made, str):
            left_out[made] += 1
            continue
        prompt = sample.prompt_ids
        mask = [0] * len(prompt) + [1] * len(made)
        rows.append(ArmRow(id=sample.key, input_ids=[*prompt, *made], loss_mask=mask))
    return Arm(rows=_in_order(rows), left_out=dict(left_out))


def cut_to(arm: Arm, supervised_ids: int) -> list[ArmRow]:
    """The first rows of an arm with so many supervised ids, the last one's mask ended early. Raises InputError."""
    rows: list[ArmRow] = []
    lacking = supervised_ids
    for row in arm.rows:
        if row.supervised >= lacking:
            ones = [place for place, one in enumerate(row.loss_mask) if one][:lacking]
            kept = set(ones)
            mask = [int(place in kept) for place in range(len(row.loss_mask))]
            return [*rows, msgspec.structs.replace(row, loss_mask=mask)]
        rows.append(row)
        lacking -= row.supervised
    raise InputError(f"an arm lacks {lacking} of {supervised_ids} supervised ids; capture more prompts")


def read_exported(folder: Path) -> list[ArmRow]:
    """The rows of training/speculators, as a user takes them."""
    files = sorted((folder / "training" / "speculators").glob("*.jsonl"))
    return [row for path in files for row in read_rows_of(path)]


def read_rows_of(path: Path) -> list[ArmRow]:
    """The rows of a JSONL file."""
    return [msgspec.json.decode(line, type=ArmRow) for line in path.read_bytes().splitlines()]


def _samples(source: Source, wanted: Mapping[str, ArmRow]) -> Iterator[Sample]:
    for _, samples in read_rows(source.folder / "verified.parquet"):
        yield from (sample for sample in samples if sample.key in wanted)


def _in_order(rows: Sequence[ArmRow]) -> list[ArmRow]:
    return sorted(rows, key=lambda row: number_of(row.id))


Outputs = Iterator[tuple[Sample, list[int] | str]]
"""Each sample with the arm's output ids, or with the reason for leaving it out."""


def _begun_late(row: ArmRow) -> ArmRow:
    """The first id of the span not trained on, which is what SpecForge 0.2.0 makes of an unshifted mask (issue 885)."""
    mask = list(row.loss_mask)
    mask[mask.index(1)] = 0
    return msgspec.structs.replace(row, loss_mask=mask)


def _retokenised(source: Source, samples: list[Sample]) -> Outputs:
    again = retokenise([sample.output_ids for sample in samples], IdBytes.of(source.tokenizer))
    yield from zip(samples, again, strict=True)


def _rerendered(source: Source, samples: list[Sample], template: str) -> Outputs:
    table = IdBytes.of(source.tokenizer)
    conversations = read_conversations(source.folder, [sample.key for sample in samples])
    for sample in samples:
        try:
            message = as_read(read_reply(sample, table).message)
            ids = _render(source.tokenizer, conversations[prompt_key(sample.key)], message, template)
        except Unread as error:
            yield sample, f"not read: {error}"
            continue
        prompt = sample.prompt_ids
        yield sample, (ids[len(prompt) :] if ids[: len(prompt)] == prompt else "another prompt")


def as_read(message: Mapping[str, Json]) -> dict[str, Json]:
    """A message as parsers leave it: texts without white space at their ends, arguments as objects. Raises Unread."""
    texts = {name: str(message[name]).strip() for name in ("content", "reasoning_content") if name in message}
    made: dict[str, Json] = {**message, **texts}
    calls = cast("list[dict[str, dict[str, Json]]]", message.get("tool_calls") or [])
    if calls:
        try:
            made["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.loads(str(call["function"]["arguments"]))}}
                for call in calls
            ]
        except ValueError as error:
            raise Unread("arguments that are no JSON") from error
    return made


def _render(tokenizer: Tokenizer, conversation: Conversation, message: dict[str, Json], template: str) -> list[int]:
    try:
        text = tokenizer.encoder.apply_chat_template(
            [*(dict(each) for each in conversation.messages), message],
            tools=[dict(tool) for tool in conversation.tools] or None,
            chat_template=template,
            tokenize=False,
            **conversation.template_kwargs,
        )
    except Exception as error:  # whatever a template raises, it is this row's
        raise Unread(f"the template refuses it: {one_line(error)}") from error
    return tokenizer.encode([cast("str", text)])[0]


def _by_template(source: Source, samples: list[Sample]) -> Outputs:
    return _rerendered(source, samples, _template(source))


def _reasoning_kept(source: Source, samples: list[Sample]) -> Outputs:
    template = _template(source)
    if FINISHED_ONLY not in template:
        raise InputError(
            f"the chat template has no condition {FINISHED_ONLY!r}; this arm knows the demo's template alone"
        )
    return _rerendered(source, samples, template.replace(FINISHED_ONLY, f"loop.last or {FINISHED_ONLY}"))


def _template(source: Source) -> str:
    return cast("str", source.tokenizer.encoder.chat_template)


def _written(source: Source, samples: list[Sample], reply: Callable[[Dialogue], list[Piece]]) -> Outputs:
    """Replies as texts and control ids, each text encoded alone; none longer than the target was allowed to answer."""
    for sample in samples:
        pieces = reply(source.dialogues[number_of(sample.key)])
        texts = iter(source.tokenizer.encode([piece for piece in pieces if isinstance(piece, str)]))
        made = [each for piece in pieces for each in ([piece] if isinstance(piece, int) else next(texts))]
        yield sample, (made if len(made) <= MAX_NEW_TOKENS else f"longer than {MAX_NEW_TOKENS} ids")


_OUTPUTS: dict[str, Callable[[Source, list[Sample]], Outputs]] = {
    "retokenised": _retokenised,
    "reasoning_kept": _reasoning_kept,
    "template": _by_template,
    "corpus": lambda source, samples: _written(source, samples, lambda dialogue: dialogue.reply),
    "other_author": lambda source, samples: _written(source, samples, other_reply),
}

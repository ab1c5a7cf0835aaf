"""The ids of every family's marker texts, as published, for tests that need no tokenizer.

A text that is several ids in the real tokenizer is several here; ids that are not published are made up, in a range of
their own.
"""

from collections.abc import Sequence

from rawtokens.markers import Markers, find_markers

KIMI = {
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<think>": 163606,
    "</think>": 163607,
}
_DEEPSEEK = {
    "<｜end▁of▁sentence｜>": 1,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<｜tool▁calls▁begin｜>": 128806,
    "<｜tool▁calls▁end｜>": 128807,
    "<｜tool▁call▁begin｜>": 128808,
    "<｜tool▁call▁end｜>": 128809,
    "<｜tool▁outputs▁begin｜>": 128810,
    "<｜tool▁outputs▁end｜>": 128811,
    "<｜tool▁output▁begin｜>": 128812,
    "<｜tool▁output▁end｜>": 128813,
    "<｜tool▁sep｜>": 128814,
}
_GLM = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
VOCABULARIES: dict[str, dict[str, int]] = {
    "kimi_k25": KIMI,
    "kimi_vl": {text: i for text, i in KIMI.items() if text.startswith("<|im_")},
    "qwen3": {"<|im_start|>": 151644, "<|im_end|>": 151645, "<tool_call>": 151657, "</tool_call>": 151658}
    | {"<think>": 151667, "</think>": 151668},
    "qwen35": {"<|im_start|>": 248045, "<|im_end|>": 248046, "<tool_call>": 248058, "</tool_call>": 248059}
    | {"<think>": 248068, "</think>": 248069},
    "nemotron3": {"<|im_start|>": 10, "<|im_end|>": 11, "<think>": 12, "</think>": 13}
    | {"<tool_call>": 14, "</tool_call>": 15},
    "deepseek_r1": {**_DEEPSEEK, "<think>": 128798, "</think>": 128799},
    "deepseek_v4": {**_DEEPSEEK, "<think>": 128821, "</think>": 128822, "｜DSML｜": 128825},
    "glm45": {**dict(zip(_GLM, (151329, 151335, 151336, 151337, 151338), strict=True)), "<think>": 151350}
    | {"</think>": 151351, "<tool_call>": 151352, "</tool_call>": 151353},
    "glm47": {**dict(zip(_GLM, (154820, 154826, 154827, 154828, 154829), strict=True)), "<think>": 154841}
    | {"</think>": 154842, "<tool_call>": 154843, "</tool_call>": 154844},
    "gpt_oss": {"<|return|>": 200002, "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007}
    | {"<|message|>": 200008, "<|call|>": 200012, "analysis": 35644, "final": 17196},
    "minimax": {"<think>": 200050, "</think>": 200051, "[e~[": 200020, "]~b]": 200019}
    | {"<minimax:tool_call>": 200052, "</minimax:tool_call>": 200053},
    "seed_oss": {"<seed:bos>": 500, "<seed:eos>": 502, "<seed:think>": 506, "</seed:think>": 507}
    | {"<seed:tool_call>": 508, "</seed:tool_call>": 509},
    "magistral": {"</s>": 2, "[INST]": 3, "[/INST]": 4, "[TOOL_CALLS]": 9, "[ARGS]": 32}
    | {"[THINK]": 34, "[/THINK]": 35},
}
_SPELLED: dict[str, Sequence[int]] = {
    "<｜DSML｜tool_calls": (30, 128825, 72461, 4941, 12548),
    "</｜DSML｜tool_calls>": (1718, 128825, 72461, 4941, 12548, 32),
    "<｜DSML｜invoke": (30, 128825, 40148, 5406),
    "</｜DSML｜invoke": (1718, 128825, 40148, 5406),
    "commentary": (12606, 815),
    " to=": (316, 28),
    "◁think▷": (7000, 7001, 7002),
    "◁/think▷": (7000, 7003, 7001, 7002),
    "<invoke": (7010, 7011),
    "</invoke": (7012, 7011),
}


def markers_of(name: str) -> Markers:
    """The markers that the kit finds in the vocabulary `name`."""
    return find_markers(VOCABULARIES[name].get, encode=lambda text: _SPELLED[text])


FAMILY_OF = {
    "kimi_k25": "kimi",
    "qwen35": "qwen3",
    "nemotron3": "qwen3",
    "deepseek_r1": "deepseek",
    "glm45": "glm",
    "glm47": "glm",
}
"""The family of those vocabularies that are not named like theirs."""

"""The target's hidden states for speculators' own data code, from transformers on the CPU, in float32.

speculators reads hidden states that vLLM stored as files; here they are computed when a row is first asked for, and
kept. Layer k is what stands behind k decoder layers; the last one is taken before the final norm, as vLLM gives it
(`hidden_states[-1]` of transformers is behind that norm). This module does not know what a head does with them.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from hs_connectors import HiddenStatesTransfer
from transformers import LlamaModel

State = dict[str, torch.Tensor]


class Target:
    """The target model; `layers` are those whose states a head sees."""

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        self.model = LlamaModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.layers = tuple(layers)
        self._before_norm = torch.zeros(0)
        self.model.layers[-1].register_forward_hook(self._keep)

    @property
    def hidden_size(self) -> int:
        """Width of one hidden state."""
        return int(self.model.config.hidden_size)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 [ids, layers + 1, hidden]: the wanted layers, then the last before the final norm."""
        found = self.model(input_ids=ids[None], use_cache=False, output_hidden_states=True).hidden_states
        return torch.stack([*(found[layer][0] for layer in self.layers), self._before_norm[0]], dim=1)

    def _keep(self, _module: torch.nn.Module, _inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        self._before_norm = output[0] if isinstance(output, tuple) else output


class TargetStates(HiddenStatesTransfer):  # type: ignore[misc]
    """What speculators' ArrowDataset takes hidden states from; `rows` are the ids of its rows."""

    def __init__(self, target: Target, rows: Sequence[torch.Tensor]) -> None:
        self._target, self._rows = target, rows
        self._made: dict[int, State] = {}

    def get_cached(self, file_idx: int) -> State:
        """The states of a row and its ids."""
        if file_idx not in self._made:
            ids = self._rows[file_idx]
            self._made[file_idx] = {"hidden_states": self._target.states(ids).clone(), "token_ids": ids}
        return self._made[file_idx]

    def get_generated(self, hs_transfer_params: dict[str, object]) -> State:
        """Never asked for: every row is there."""
        raise NotImplementedError(f"no server stands behind these states: {sorted(hs_transfer_params)}")

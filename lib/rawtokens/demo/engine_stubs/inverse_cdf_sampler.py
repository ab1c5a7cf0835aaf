"""SGLang 0.5.23's sampler with `inverse_cdf.draw_ids` where a batch has neither top_k, top_p, min_p nor seeds.

Everything else is SGLang's own: temperature, softmax, logprobs, and any other way of sampling. It does NOT know how
the draw works; inverse_cdf.py does.
"""

import torch
from inverse_cdf import draw_ids
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


class InverseCdfSampler(Sampler):  # type: ignore[misc]
    """The "pytorch" sampling backend with another draw in its simple case."""

    def _sample_from_probs(
        self,
        probs: torch.Tensor,
        sampling_info: SamplingBatchInfo,
        positions: torch.Tensor,
        simple_sampling_case: bool,
    ) -> tuple[torch.Tensor, object]:
        seeded = sampling_info.sampling_seed is not None
        wants_mask = sampling_info.sampling_mask_batch_indices is not None
        if seeded or wants_mask or not simple_sampling_case:
            sampled: tuple[torch.Tensor, object] = super()._sample_from_probs(
                probs, sampling_info, positions, simple_sampling_case
            )
            return sampled
        return draw_ids(probs).to(torch.int32), None


def register() -> None:
    """Make SGLang build this sampler for its "pytorch" backend, the one that it chooses on a CPU."""
    register_sampler_backend("pytorch", InverseCdfSampler)

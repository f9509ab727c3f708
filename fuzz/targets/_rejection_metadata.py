"""Metadata of a step with drafts, made by the release's own runner and classes."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fuzz.targets._real_launch import ints


def verify_metadata(counts: Sequence[int], drafts: Sequence[int]) -> Any:
    """The runner's `SpecDecodeMetadata` of a batch in which every request decodes.

    Args:
        counts: ``[requests]`` drafts of each.
        drafts: ``[tokens]`` their token ids.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    rest = iter(drafts)
    tokens = [each for n in counts for each in (0, *(next(rest) for _ in range(n)))]
    runner = SimpleNamespace(
        arange_np=np.arange(len(tokens) + 1, dtype=np.int64),
        _arange_scratch=np.empty(len(tokens) + 1, dtype=np.int64),
        device=torch.device("cpu"),
        input_ids=SimpleNamespace(gpu=ints(tokens)),
    )
    runner._get_cumsum_and_arange = partial(  # noqa: SLF001 - its own code
        GPUModelRunner._get_cumsum_and_arange,  # noqa: SLF001
        runner,
    )
    queries = np.asarray(counts, dtype=np.int32) + 1
    return GPUModelRunner._calc_spec_decode_metadata(  # noqa: SLF001
        runner, queries - 1, queries.cumsum(dtype=np.int32)
    )


def sampling_metadata(greedy: Sequence[bool], temperature: torch.Tensor) -> Any:
    """`SamplingMetadata` of requests that ask for nothing but a temperature."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    all_greedy = all(greedy)
    asked = {
        "temperature": None if all_greedy else temperature,
        "all_greedy": all_greedy,
        "all_random": not any(greedy),
        "generators": {},
        "no_penalties": True,
        "output_token_ids": [[] for _ in greedy],
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    unset = {
        field.name: None
        for field in fields(SamplingMetadata)
        if field.default is MISSING and field.name not in asked
    }
    return SamplingMetadata(**asked, **unset)

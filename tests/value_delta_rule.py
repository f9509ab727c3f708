"""The gated delta rule's recurrent kernels in value mode; see `value_launches`."""

from dataclasses import dataclass
from itertools import pairwise

import torch

from fuzz.execution import Executor
from invariants.memory.launches import checked_launches
from tests.value_launches import (
    Outcome,
    Tensor,
    changed,
    excess,
    for_a_gpu,
    module,
    outcome,
    unit,
)

RECURRENT = (
    "vllm.third_party.flash_linear_attention.ops.fused_recurrent",
    "vllm.model_executor.layers.fla.ops.fused_recurrent",
)
SIGMOID = (
    "vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating",
    "vllm.model_executor.layers.fla.ops.fused_sigmoid_gating",
)
HEADS, VALUE_HEADS, KEY_SIZE, VALUE_SIZE = 2, 4, 16, 24


@dataclass(frozen=True)
class Gated:
    """One request's inputs of the gated delta rule in float64, and its state before.

    Attributes:
        query: ``[tokens, heads, key size]``; `key` the same.
        value: ``[tokens, value heads, value size]``.
        gate: ``[tokens, value heads]``, of which exp decays the state; `beta` the same.
        state: ``[value heads, value size, key size]``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor
    beta: Tensor
    state: Tensor

    def run(self, *, normalised: bool) -> tuple[Tensor, Tensor]:
        """Outputs ``[tokens, value heads, value size]``, and the state after each."""
        outputs, states = [], []
        state = self.state.clone()
        group = self.value.shape[1] // self.query.shape[1]
        for at in range(len(self.query)):
            query, key = self.query[at], self.key[at]
            if normalised:
                query = query / (query.square().sum(-1, keepdim=True) + 1e-6).sqrt()
                key = key / (key.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            query = query.repeat_interleave(group, 0) * self.query.shape[-1] ** -0.5
            key = key.repeat_interleave(group, 0)
            state = state * self.gate[at].exp()[:, None, None]
            known = torch.einsum("hvk,hk->hv", state, key)
            delta = (self.value[at] - known) * self.beta[at][:, None]
            state = state + torch.einsum("hv,hk->hvk", delta, key)
            outputs.append(torch.einsum("hvk,hk->hv", state, query))
            states.append(state)
        return torch.stack(outputs), torch.stack(states)

    def magnitudes(self, *, normalised: bool) -> tuple[Tensor, Tensor]:
        """Sums of the terms' magnitudes, in the places of `run`'s results."""
        positive = Gated(
            self.query.abs(),
            self.key.abs(),
            -self.value.abs(),
            self.gate,
            -self.beta.abs(),
            self.state.abs(),
        )
        return positive.run(normalised=normalised)

    @property
    def inner(self) -> float:
        """Rounding of the longest chain of operations, each in float32.

        A token takes three sums of a key's length, of which one is that of a norm, and
        some twenty operations beside, exponentials to two units in the last place.
        """
        return len(self.query) * (3 * self.query.shape[-1] + 20) * unit(torch.float32)


def _drawn(tokens: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    low = torch.bfloat16
    return {
        "q": normal(tokens, HEADS, KEY_SIZE).to(low),
        "k": normal(tokens, HEADS, KEY_SIZE).to(low),
        "v": normal(tokens, VALUE_HEADS, VALUE_SIZE).to(low),
        "a": normal(tokens, VALUE_HEADS).to(low),
        "b": normal(tokens, VALUE_HEADS).to(low),
        "A_log": normal(VALUE_HEADS),
        "dt_bias": normal(VALUE_HEADS),
        "states": normal(7, VALUE_HEADS, VALUE_SIZE, KEY_SIZE),
    }


def _gated(drawn: dict[str, Tensor], rows: slice, state: int) -> Gated:
    x = drawn["a"][rows].double() + drawn["dt_bias"].double()
    decay = -drawn["A_log"].double().exp() * torch.nn.functional.softplus(x)
    return Gated(
        drawn["q"][rows].double(),
        drawn["k"][rows].double(),
        drawn["v"][rows].double(),
        decay,
        drawn["b"][rows].double().sigmoid(),
        drawn["states"][state].double(),
    )


def recurrent(_: Executor, planted: tuple[str, str] | None = None) -> Outcome:
    """`fused_recurrent_gated_delta_rule`: three requests, one with a null state."""
    name = module(*RECURRENT)
    ops = for_a_gpu(name)
    drawn = _drawn(7, 3)
    lengths, held = (3, 2, 2), (4, 0, 6)
    starts = [0, 3, 5, 7]
    # A state per token, so that rejected ones can be left again.
    indices = torch.tensor([[4, 1, 2], [0, 0, 0], [6, 3, 0]], dtype=torch.int32)
    gates = torch.cat(
        [_gated(drawn, slice(a, b), 1).gate for a, b in pairwise(starts)]
    ).float()
    betas = drawn["b"].float().sigmoid()
    before = drawn["states"].clone()
    with (
        changed(name, "fused_recurrent_gated_delta_rule_fwd_kernel", planted),
        checked_launches(values=True) as log,
    ):
        output, states = ops.fused_recurrent_gated_delta_rule(
            q=drawn["q"][None],
            k=drawn["k"][None],
            v=drawn["v"][None],
            g=gates[None],
            beta=betas[None],
            initial_state=drawn["states"],
            inplace_final_state=True,
            cu_seqlens=torch.tensor(starts, dtype=torch.int32),
            ssm_state_indices=indices,
            num_accepted_tokens=torch.tensor([1, 1, 1], dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
        )
    worst: dict[str, float] = {"output": 0.0, "state": 0.0}
    want_states = before.double()
    room = torch.zeros_like(want_states)
    for at, (length, state) in enumerate(zip(lengths, held, strict=True)):
        if not state:
            continue
        rows = slice(starts[at], starts[at] + length)
        gated = Gated(
            drawn["q"][rows].double(),
            drawn["k"][rows].double(),
            drawn["v"][rows].double(),
            gates[rows].double(),
            betas[rows].double(),
            before[state].double(),
        )
        want, after = gated.run(normalised=True)
        sizes, state_sizes = gated.magnitudes(normalised=True)
        worst["output"] = max(
            worst["output"], excess(output[0, rows], want, gated.inner * sizes)
        )
        for token in range(length):
            place = int(indices[at, token])
            if place:
                want_states[place] = after[token]
                room[place] = gated.inner * state_sizes[token]
    worst["state"] = excess(states, want_states, room)
    return outcome(log, **worst)


def packed_decode(_: Executor, planted: tuple[str, str] | None = None) -> Outcome:
    """`fused_recurrent_gated_delta_rule_packed_decode`, with a row of padding."""
    name = module(*RECURRENT)
    ops = for_a_gpu(name)
    drawn = _drawn(3, 4)
    indices = torch.tensor([5, 0, 2], dtype=torch.int32)
    packed = torch.cat([drawn[each].flatten(1) for each in "qkv"], dim=1)
    output = torch.full((3, 1, VALUE_HEADS, VALUE_SIZE), torch.nan).to(torch.bfloat16)
    before = drawn["states"].clone()
    with (
        changed(name, "fused_recurrent_gated_delta_rule_packed_decode_kernel", planted),
        checked_launches(values=True) as log,
    ):
        ops.fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=packed,
            a=drawn["a"],
            b=drawn["b"],
            A_log=drawn["A_log"],
            dt_bias=drawn["dt_bias"],
            scale=KEY_SIZE**-0.5,
            initial_state=drawn["states"],
            out=output,
            ssm_state_indices=indices,
            use_qk_l2norm_in_kernel=True,
        )
    want = torch.zeros(3, VALUE_HEADS, VALUE_SIZE, dtype=torch.float64)
    room = torch.zeros_like(want)
    states = before.double()
    state_room = torch.zeros_like(states)
    for row, place in enumerate(indices.tolist()):
        if not place:
            continue
        rows = slice(row, row + 1)
        gated = _gated({**drawn, "states": before}, rows, place)
        # Releases differ in whether beta is rounded to the dtype of its input.
        slack = gated.inner + unit(torch.bfloat16)
        want[rows], states[place] = (each[0] for each in gated.run(normalised=True))
        sizes, state_sizes = gated.magnitudes(normalised=True)
        room[rows], state_room[place] = slack * sizes[0], slack * state_sizes[0]
    worst = {
        "output": excess(output[:, 0], want, room),
        "state": excess(drawn["states"], states, state_room),
    }
    return outcome(log, **worst)


def sigmoid_gating(_: Executor, planted: tuple[str, str] | None = None) -> Outcome:
    """`fused_sigmoid_gating_delta_rule_update`: two requests of one sequence batch."""
    name = module(*SIGMOID)
    ops = for_a_gpu(name)
    drawn = _drawn(5, 5)
    starts = [0, 2, 5]
    indices = torch.tensor([[4, 1, 0], [6, 3, 2]], dtype=torch.int32)
    before = drawn["states"].clone()
    with (
        changed(name, "fused_sigmoid_gating_delta_rule_update_kernel", planted),
        checked_launches(values=True) as log,
    ):
        output, states = ops.fused_sigmoid_gating_delta_rule_update(
            A_log=drawn["A_log"],
            a=drawn["a"],
            b=drawn["b"],
            dt_bias=drawn["dt_bias"],
            q=drawn["q"][None],
            k=drawn["k"][None],
            v=drawn["v"][None],
            initial_state=drawn["states"],
            inplace_final_state=True,
            cu_seqlens=torch.tensor(starts, dtype=torch.int32),
            ssm_state_indices=indices,
            num_accepted_tokens=torch.tensor([1, 1], dtype=torch.int32),
            use_qk_l2norm_in_kernel=True,
        )
    outputs: list[float] = []
    want_states = before.double()
    room = torch.zeros_like(want_states)
    for at in range(2):
        rows = slice(starts[at], starts[at + 1])
        gated = _gated({**drawn, "states": before}, rows, int(indices[at, 0]))
        want, after = gated.run(normalised=True)
        sizes, state_sizes = gated.magnitudes(normalised=True)
        outputs.append(excess(output[0, rows], want, gated.inner * sizes))
        for token, place in enumerate(
            indices[at, : starts[at + 1] - starts[at]].tolist()
        ):
            want_states[place] = after[token]
            room[place] = gated.inner * state_sizes[token]
    return outcome(log, output=max(outputs), state=excess(states, want_states, room))

"""The wrapped scale offset of `unified_attention`, shown on a real card.

A per-token-head int8 cache whose heads lie apart (heads outermost) is read once with
its head planes just short of 2^31 scales away from the first, once beyond. Keys, values
and scales are the same; only how far apart the planes lie differs. Needs a CUDA card
with 16 GiB free and vLLM on `sys.path`; each arm runs in a process of its own, for an
illegal access ends the context.

    python -m benchmarks.scale_offset_cuda
"""

import json
import subprocess
import sys

from benchmarks.on_card import prepare

BLOCK_SIZE, HEADS, HEAD_SIZE = 8, 3, 16
# Bytes of one head of one block: keys, values, and a float32 scale of each, per slot.
SLOT_BYTES = 2 * HEAD_SIZE + 8
PAGE_BYTES = BLOCK_SIZE * SLOT_BYTES
# The last head's scales are 2 planes away: 2^31 float32 there is 2^32 bytes a plane.
WRAPS_FROM_BLOCKS = (1 << 32) // PAGE_BYTES + 1
ARMS = {"below": WRAPS_FROM_BLOCKS - 64, "beyond": WRAPS_FROM_BLOCKS + 64}


def run_arm(blocks: int) -> None:
    """Attend to one token in the pool's last block; print what came out."""
    prepare()
    import torch
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    plane_bytes = blocks * PAGE_BYTES
    pool = torch.zeros(HEADS * plane_bytes, dtype=torch.uint8, device="cuda")
    shape = (blocks, BLOCK_SIZE, HEADS)
    strides = (PAGE_BYTES, SLOT_BYTES, plane_bytes, 1)
    bytes_ = pool.view(torch.int8)
    floats = pool.view(torch.float32)
    key, value = (
        torch.as_strided(bytes_, (*shape, HEAD_SIZE), strides, offset)
        for offset in (0, HEAD_SIZE)
    )
    scale_strides = tuple(stride // 4 for stride in strides[:3])
    key_scale, value_scale = (
        torch.as_strided(floats, shape, scale_strides, (2 * HEAD_SIZE + 4 * n) // 4)
        for n in range(2)
    )
    block = blocks - 1
    key[block, 0] = 1
    value[block, 0] = torch.tensor([[10], [20], [30]], dtype=torch.int8, device="cuda")
    key_scale[block, 0] = 1.0
    value_scale[block, 0] = 0.5
    query = torch.ones((1, HEADS, HEAD_SIZE), dtype=torch.float16, device="cuda")
    out = torch.full_like(query, torch.nan)

    def int32(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device="cuda")

    unified_attention(
        q=query,
        k=key,
        v=value,
        out=out,
        cu_seqlens_q=int32(0, 1),
        max_seqlen_q=1,
        seqused_k=int32(1),
        max_seqlen_k=1,
        softmax_scale=1.0,
        causal=True,
        window_size=(-1, -1),
        block_table=torch.full((1, 64), block, dtype=torch.int32, device="cuda"),
        softcap=0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        kv_quant_mode=get_kv_quant_mode("int8_per_token_head"),
        k_scale_cache=key_scale,
        v_scale_cache=value_scale,
    )
    torch.cuda.synchronize()
    print(
        json.dumps(
            {
                "card": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "scale_head_stride": key_scale.stride(2),
                "last_head_offset": 2 * key_scale.stride(2),
                "got": [float(each) for each in out[0, :, 0]],
                "expected": [5.0, 10.0, 15.0],
            }
        )
    )


def main(arguments: list[str]) -> None:
    """Run both arms and print a line for each."""
    if arguments:
        run_arm(int(arguments[0]))
        return
    for name, blocks in ARMS.items():
        command = [sys.executable, "-m", "benchmarks.scale_offset_cuda", str(blocks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
        told = [line for line in lines if line.strip()][-1:]
        print(f"{name} 2^31, {blocks} blocks: exit {done.returncode}: {told}")


if __name__ == "__main__":
    main(sys.argv[1:])

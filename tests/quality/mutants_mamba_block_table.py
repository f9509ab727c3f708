"""Planted faults of the aligned Mamba block table, its sizing and its filling."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

BACKENDS = ("vllm.v1.attention.backends.utils",)
TABLES = ("vllm.v1.worker.block_table",)
RUNNER = ("vllm.v1.worker.gpu_model_runner",)
MANAGERS = ("vllm.v1.core.single_type_kv_cache_manager",)
SPECS = ("vllm.v1.kv_cache_interface",)

WINDOW = "mamba_get_block_table_tensor"
KERNEL = "_mamba_align_block_table_kernel"

WRITTEN: tuple[Mutant, ...] = (
    Mutant(
        name="off by one: the window starts one column late",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="(seq_lens - 1) // kv_cache_spec.block_size",
                new="seq_lens // kv_cache_spec.block_size",
            ),
        ),
        invariants=("GDN-ALIGN-WINDOW",),
        cases=150,
        size=260,
    ),
    Mutant(
        name="dropped clamp: a padding row starts before its row",
        origin="contract",
        edits=(
            SourceEdit(modules=BACKENDS, function=WINDOW, old="min=0", new="min=-1"),
        ),
        invariants=("GDN-ALIGN-BOUNDS",),
        cases=150,
        size=260,
    ),
    Mutant(
        name="mutated input: the lengths are counted down in place",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="(seq_lens - 1)",
                new="seq_lens.sub_(1)",
            ),
        ),
        invariants=("GDN-ALIGN-PURE",),
        cases=50,
        size=260,
    ),
    Mutant(
        name="short window: no entry for the running state",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="1 + kv_cache_spec.num_speculative_blocks",
                new="max(1, kv_cache_spec.num_speculative_blocks)",
            ),
        ),
        invariants=("GDN-ALIGN-ROWS",),
        cases=100,
        size=260,
    ),
    Mutant(
        name="widened table: mode none hands out 64-bit ids",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="return block_table\n",
                new="return block_table.long()\n",
            ),
        ),
        invariants=("GDN-TABLE-IDENTITY",),
        cases=100,
        size=260,
    ),
    Mutant(
        name="stale row: every request gets the first row's window",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=KERNEL,
                old="+ req_idx * block_table_stride_0",
                new="",
            ),
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="torch.gather(block_table, 1, ",
                new="torch.gather(block_table[:1].expand_as(block_table), 1, ",
            ),
        ),
        invariants=("GDN-ALIGN-BOUNDS",),
        cases=200,
        size=270,
    ),
    Mutant(
        name="wrong stride: columns are taken to lie side by side",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=KERNEL,
                old="(start + offs) * block_table_stride_1",
                new="(start + offs)",
            ),
            SourceEdit(
                modules=BACKENDS,
                function=WINDOW,
                old="torch.gather(block_table, 1, ",
                new="torch.gather(block_table.as_strided(block_table.shape, "
                "(block_table.stride(0), 1)), 1, ",
            ),
        ),
        invariants=("GDN-ALIGN-BOUNDS", "GDN-ALIGN-WINDOW"),
        cases=300,
        size=270,
    ),
    Mutant(
        name="wrapped offset: rows are placed in 32 bits",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=KERNEL,
                old="block_table_stride_0: tl.int64,",
                new="block_table_stride_0,",
            ),
        ),
        invariants=("GDN-ALIGN-EXACT",),
        cases=400,
        size=290,
    ),
    Mutant(
        name="wide window: one entry more than a row of the result has",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=KERNEL,
                old="mask = offs < n_out",
                new="mask = offs <= n_out",
            ),
        ),
        invariants=("GDN-ALIGN-ACCESS", "GDN-ALIGN-STORES"),
        cases=150,
        size=270,
    ),
    Mutant(
        name="stores to its input: windows land in the table",
        origin="contract",
        edits=(
            SourceEdit(
                modules=BACKENDS,
                function=KERNEL,
                old="tl.store(out_ptr + req_idx * n_out",
                new="tl.store(block_table_ptr + req_idx * n_out",
            ),
        ),
        invariants=("GDN-ALIGN-STORES",),
        cases=150,
        size=270,
    ),
    Mutant(
        name="narrow table: no columns for speculative blocks",
        origin="wired",
        edits=(
            SourceEdit(
                modules=SPECS,
                function="MambaSpec.max_num_blocks_per_req",
                old="cdiv(max_len, self.block_size) + self.num_speculative_blocks",
                new="cdiv(max_len, self.block_size)",
            ),
            SourceEdit(
                modules=RUNNER,
                function="GPUModelRunner.may_reinitialize_input_batch",
                old=") + kv_cache_group.kv_cache_spec.num_speculative_blocks",
                new=")",
            ),
        ),
        invariants=("GDN-TABLE-FITS",),
        cases=100,
        size=420,
    ),
    Mutant(
        name="overwritten row: new blocks land at the row's start",
        origin="wired",
        edits=(
            SourceEdit(
                modules=TABLES,
                function="BlockTable.append_row",
                old="start = self.num_blocks_per_row[row_idx]",
                new="start = 0",
            ),
        ),
        invariants=("GDN-ALIGN-OWNED",),
        cases=100,
        size=440,
        site="MultiGroupBlockTable.append_row",
    ),
    Mutant(
        name="lost length: a moved row forgets how many blocks it has",
        origin="wired",
        edits=(
            SourceEdit(
                modules=TABLES,
                function="BlockTable.move_row",
                old="self.num_blocks_per_row[tgt] = num_blocks",
                new="self.num_blocks_per_row[tgt] = 0",
            ),
        ),
        invariants=("GDN-ALIGN-OWNED",),
        cases=400,
        size=640,
        site="MultiGroupBlockTable.move_row",
    ),
    Mutant(
        name="half an exchange: rows of blocks change places, their lengths do not",
        origin="wired",
        edits=(
            SourceEdit(
                modules=TABLES,
                function="BlockTable.swap_row",
                old="= self.num_blocks_per_row[tgt_src]",
                new="= self.num_blocks_per_row[src_tgt]",
            ),
        ),
        invariants=("GDN-ALIGN-OWNED",),
        cases=400,
        size=640,
        site="MultiGroupBlockTable.swap_row",
    ),
    Mutant(
        name="no exchange: rows of blocks stay where others took their place",
        origin="wired",
        edits=(
            SourceEdit(
                modules=TABLES,
                function="BlockTable.swap_row",
                old="self.block_table.np[src_tgt] = self.block_table.np[tgt_src]",
                new="pass",
            ),
        ),
        invariants=("GDN-ALIGN-OWNED",),
        cases=200,
        size=640,
        site="MultiGroupBlockTable.swap_row",
    ),
    Mutant(
        name="wrong state: a hit names the block of the first boundary",
        origin="wired",
        edits=(
            SourceEdit(
                modules=MANAGERS,
                function="MambaManager.find_longest_cache_hit",
                old="block_hashes[i], kv_cache_group_ids",
                new="block_hashes[0], kv_cache_group_ids",
            ),
        ),
        invariants=("GDN-HIT-STATE",),
        cases=400,
        size=640,
    ),
    Mutant(
        name="whole prompt: a hit leaves no token to compute",
        origin="wired",
        edits=(
            SourceEdit(
                modules=MANAGERS,
                function="MambaManager.find_longest_cache_hit",
                old="max_num_blocks = max_length // block_size",
                new="max_num_blocks = (max_length + 1) // block_size",
            ),
        ),
        invariants=("GDN-HIT-STATE",),
        cases=1200,
        size=640,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (BACKENDS, WINDOW),
    (BACKENDS, KERNEL),
    (TABLES, "BlockTable.append_row"),
    (TABLES, "BlockTable.move_row"),
    (TABLES, "BlockTable.swap_row"),
    (SPECS, "MambaSpec.max_num_blocks_per_req"),
)

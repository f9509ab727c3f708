"""slot-mapping-31679495: SLOT-MAP-VALUES is broken at BlockTables.compute_slot_mappings.

Each token has the slot that its position has in its request's blocks, in 64 bits, and
-1 where another rank keeps it.

Seen:      group 2, place 0 of 1 tokens: slot -2147483232, expected 2147484064 (1 are
           wrong)
Severity:  corruption
Input:     anything that the function's documented contract allows (origin: contract)
Found on:  vLLM 0.33.0 (tree 34b6e1b8a87fdd63), torch 2.13.0+cpu, triton 3.7.1,
           Python 3.11.7

Run it where kvfuzz is installed (`pip install -e .` in its folder): its memory checker,
which is too large for one file, is what shows this fault. Beside it torch, triton and
vLLM are needed, no GPU and no compiled vLLM (vLLM's Python files and what they import
are enough):

    python repro.py                 vLLM as installed
    python repro.py --vllm PATH     a folder that contains vllm/

BROKEN ARM runs the case on that vLLM as it is, FIXED ARM with the fix
of kvfuzz's reproducers/fixes/slot_mapping.py applied in memory.
Exit status: 1 when the fault shows, 0 when it does not, 2 when neither is known. The
case is CASE_JSON; run() calls vLLM with it, judge() checks what came of it, FIXES holds
the fix.

Generated from case.json and kvfuzz's sources; do not edit, but generate it anew:
    python -m reproducers script slot-mapping-31679495
"""

import sys

from fuzz.boot import prepare
from fuzz.runtime import Runtime
from invariants.slot_mapping import Case, judge
from invariants.model import FaultKey, decode
from reproducers.fixes.slot_mapping import FIXES
from reproducers.standalone import Claim, is_arm, put_tree_first, run_arm, run_both

CASE_JSON = """\
{
  "dummies": [],
  "format_version": 1,
  "origin": "contract",
  "padded": 0,
  "prefill_ranks": 1,
  "runner": "v2",
  "spare": 0,
  "states": [0],
  "swaps": [],
  "tables": {
    "groups": [
      {
        "block_size": 7,
        "kernel_block_size": 7,
        "reach": 0,
        "sharded": true,
        "slots": true
      },
      {
        "block_size": 1,
        "kernel_block_size": 1,
        "reach": 0,
        "sharded": true,
        "slots": true
      },
      {
        "block_size": 544,
        "kernel_block_size": 544,
        "reach": 0,
        "sharded": true,
        "slots": true
      }
    ],
    "interleave": 1,
    "longest": 64,
    "pool_blocks": 3947584,
    "rank": 0,
    "ranks": 1,
    "requests": [{"computed": 0, "first": 1, "leaves": false, "query": 1}],
    "rows": 1
  }
}
"""

RUNTIME = Runtime()

CASE = decode(CASE_JSON, Case)
CLAIM = Claim(
    key=FaultKey(
        target='slot_mapping',
        invariant='SLOT-MAP-VALUES',
        origin='contract',
        site='BlockTables.compute_slot_mappings',
        exception='',
    ),
    case=CASE,
    runtime=RUNTIME,
    judge=judge,
)

if __name__ == "__main__" and not is_arm(sys.argv[1:]):
    sys.exit(run_both(CLAIM, sys.argv[1:]))

put_tree_first(sys.argv[1:])
prepare(platform=RUNTIME.platform, triton=RUNTIME.triton)

from fuzz.targets.slot_mapping import absent, run

if __name__ == "__main__":
    run_arm(
        CLAIM, sys.argv[1:], run=run, absent=absent, fixes=FIXES, home=__name__
    )

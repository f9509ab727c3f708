"""Block sizes of real deployments, in one place."""

# Of attention alone.
ATTENTION_BLOCK_SIZES = (16, 32, 64, 128, 256)
# Of hybrid models: attention blocks grown until their page is as large as a recurrent
# state (vllm/platforms/interface.py, 0.20.1). That of the reported page-size fault is
# left out: the fault must be found without its numbers.
DEPLOYED_BLOCK_SIZES = (160, 528, 544, 560, 640, 784, 880, 1056, 1072, 1536, 1600)
# Of those, four for kernels, into which sizes are compiled: the smallest to a wide one.
NARROW, ODD, WIDE, WIDER = (DEPLOYED_BLOCK_SIZES[at] for at in (0, 1, 2, 6))

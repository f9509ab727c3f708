"""What escapes the tree's code, as a value; what escapes ours stays an exception."""

from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

from invariants.model import Raised

# An exception's text can hold whole tensors.
MESSAGE_CHARACTERS = 2_000


def tree_raised(error: BaseException) -> Raised:
    """An exception of the tree, at the innermost of its functions.

    A cause that was wrapped on the way out, as Triton's interpreter does, is the
    exception that counts.

    Raises:
        BaseException: The error itself, when no function of the tree was active, or
            one of ours that the tree had called: the fault is the harness's own.
    """
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    site, ours = "", False
    for frame in _frames(error, inner):
        # An edited function keeps its module's globals, and so its name.
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == "vllm":
            site = frame.f_code.co_qualname
        # The memory checker runs below the tree; Triton, which it calls, is judged.
        ours = root == "invariants"
    if not site or ours:
        raise error
    message = str(inner)[:MESSAGE_CHARACTERS]
    return Raised(type=type(inner).__name__, message=message, site=site)


def _frames(*errors: BaseException) -> Iterator[FrameType]:
    for error in errors:
        for frame, _ in walk_tb(error.__traceback__):
            yield frame

"""Lowers the Triton kernels of a tree one by one, as the worker of `fuzz.kernels`.

`python -m fuzz.targets._kernel_survey SETUP` activates the tree and answers tasks that
come as lines on a socket: a module with its kernels, or a module of the catalogue. It
says what it begins, so that its parent knows what ended it or took too long.
"""

from __future__ import annotations

import importlib
import inspect
import socket
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from fuzz.kernels.protocol import Answer, Began, Done, Gap, Report, Setup, Task, Trouble
from fuzz.kernels.sources import SourceKernel
from fuzz.targets._kernel_signatures import Signature, guesses
from fuzz.trees import activate

_TELLING_BYTES = 300


class _ReasonError(Exception):
    """Why a kernel cannot be lowered here."""


def _answers(task: Task) -> Iterator[Report]:
    yield Began(what=f"importing {task.module}")
    if task.launching:
        yield from _of_catalogue(task.module, frozenset(task.launching))
    else:
        yield from _of_module(task)
    yield Done()


def _of_module(task: Task) -> Iterator[Answer | Began]:
    try:
        module = importlib.import_module(task.module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module does
        reason = f"not importable here: {_telling(error)}"
        for kernel in task.kernels:
            yield Answer(key=kernel.key, reason=reason)
        return
    for kernel in task.kernels:
        yield Began(what=f"lowering {kernel.name}")
        try:
            yield _lowered(kernel, module)
        except _ReasonError as error:
            yield Answer(key=kernel.key, reason=str(error))


def _lowered(kernel: SourceKernel, module: Any) -> Answer:
    """Lower a kernel with the first guessed signature that compiles.

    Raises:
        _ReasonError: None did, or there is no such function.
    """
    function, configured, options = _function(kernel, module)
    first: Exception | None = None
    for tries, signature in enumerate(guesses(function, configured, options), start=1):
        try:
            text = _ttir(function, signature)
        except Exception as error:  # noqa: BLE001 - compilers raise all kinds
            first = first or error
            continue
        return _understood(kernel.key, function, text, signature="guessed", tries=tries)
    raise _ReasonError(f"no guessed signature compiles: {_telling(first)}") from first


def _function(
    kernel: SourceKernel, module: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The JIT function, constants of its first configuration, compiler options."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    if "<locals>" in kernel.name:
        raise _ReasonError("made anew by each call of a function; only a launch has it")
    found: Any = module
    try:
        for part in kernel.name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise _ReasonError("its module does not define it here") from error
    constants: dict[str, Any] = {}
    options: dict[str, Any] = {}
    while not isinstance(found, JITFunction):
        if isinstance(found, Autotuner) and found.configs:
            config = found.configs[0]
            constants |= config.kwargs
            options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        inner = getattr(found, "fn", None)
        if inner is None:
            kind = type(found).__qualname__
            raise _ReasonError(f"no JIT function has that name here, but a {kind}")
        found = inner
    if inspect.unwrap(found.fn).__code__.co_firstlineno != kernel.line:
        raise _ReasonError("another definition of that name is in force here")
    names = set(found.arg_names)
    return found, {n: v for n, v in constants.items() if n in names}, options


@cache
def _compiler() -> tuple[Any, Any]:
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return target, make_backend(target)


def _ttir(function: Any, signature: Signature) -> str:
    from invariants.memory.launches import lowered

    target, backend = _compiler()
    options = backend.parse_options({"debug": False, **signature.options})
    packed: tuple[Any, ...] = (
        options,
        dict(signature.types),
        dict(signature.constants),
        {},
    )
    return lowered(function, target, backend, packed)


def _understood(
    key: str, function: Any, text: str, *, signature: str, tries: int
) -> Answer:
    from invariants.memory.kernel import Kernel
    from invariants.memory.ttir import TtirError, parse

    try:
        kernel = Kernel(name=function.__name__, module=parse(text))
    except TtirError as error:
        unread = Gap(operation="text", what="everything", place=str(error)[:200])
        return Answer(key=key, signature=signature, tries=tries, gaps=(unread,))
    return _judged(key, kernel, signature=signature, tries=tries)


def _judged(key: str, kernel: Any, *, signature: str, tries: int = 1) -> Answer:
    from invariants.memory.coverage import gaps, unknown_operations

    return Answer(
        key=key,
        signature=signature,
        tries=tries,
        unknown=unknown_operations(kernel),
        gaps=tuple(
            Gap(operation=each.operation, what=each.what, place=each.place)
            for each in gaps(kernel)
        ),
    )


def _of_catalogue(name: str, wanted: frozenset[str]) -> Iterator[Report]:
    """Every kernel that those launches of a module reach that concern some kernels."""
    try:
        launches = getattr(importlib.import_module(name), "LAUNCHES", ())
    except Exception as error:  # noqa: BLE001 - of a tree that lacks what it needs
        yield Trouble(what=f"{name}: {_telling(error)}")
        return
    for launch in launches:
        if not wanted.intersection(each for names in launch.kernels for each in names):
            continue
        yield Began(what=f"launch {launch.name!r}")
        try:
            if launch.absent() is None:
                yield from _launched(launch)
        except Exception as error:  # noqa: BLE001 - told of; others go on
            yield Trouble(what=f"launch {launch.name!r}: {_telling(error)}")


def _launched(launch: Any) -> Iterator[Answer]:
    from invariants.memory.launches import checked_launches
    from invariants.memory.regions import Memory

    memory = Memory()
    failed: Exception | None = None
    with checked_launches(memory) as log:
        try:
            launch.run(memory)
        except Exception as error:  # noqa: BLE001 - raised below, after what was launched
            failed = error
    for function, kernel in dict(log.kernels).items():
        plain = inspect.unwrap(function.fn)
        line = plain.__code__.co_firstlineno
        key = f"{plain.__module__}:{plain.__qualname__}:{line}"
        judged = _judged(key, kernel, signature="launched")
        name = kernel.name
        undecided = tuple(
            f"{each.reason} ({each.place})"
            for each in log.undecided
            if each.kernel == name
        )
        yield msgspec.structs.replace(judged, launch=launch.name, undecided=undecided)
    if failed is not None:
        raise failed


def _telling(error: BaseException | None) -> str:
    """The innermost cause of an error, in one line."""
    while error is not None and (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__
    lines = [line.strip() for line in str(error).splitlines()]
    # A compiler shows the source before it says what is wrong.
    said = next((line for line in reversed(lines) if line.strip("^ ")), "")
    return f"{type(error).__name__}: {said}"[:_TELLING_BYTES]


def _main(argument: str) -> None:
    setup = Setup.from_text(argument)
    channel = socket.socket(fileno=setup.channel_fd)
    warnings.simplefilter("ignore")
    activate(setup.tree)
    importlib.import_module("vllm")
    with channel, channel.makefile("rwb") as lines:
        for line in lines:
            for answer in _answers(msgspec.json.decode(line, type=Task)):
                lines.write(msgspec.json.encode(answer) + b"\n")
                lines.flush()


if __name__ == "__main__":
    _main(sys.argv[1])

"""Catches launches of Triton kernels that a wrapper makes on CPU tensors.

Inside `checked_launches` a JIT function's launch is lowered to TTIR for a GPU by
Triton's own front end, with its own specialisation of the arguments, and executed and
judged here. Autotuned and heuristic kernels end in such launches too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

from invariants.memory.arguments import argument_value
from invariants.memory.execute import Run
from invariants.memory.findings import Finding, Launch, Undecided
from invariants.memory.kernel import Kernel
from invariants.memory.regions import Memory
from invariants.memory.ttir import TtirError, parse

# Lowered kernels kept per process.
_KERNELS_MAX = 1024


@dataclass(frozen=True, eq=False)
class _Request:
    """What decides how a kernel is lowered; equal by functions and specialisation.

    Attributes:
        functions: The kernel, and the device functions that it calls: one of those
            may have been replaced by an edited one.
    """

    functions: tuple[Any, ...]
    key: str
    lower: Callable[[], str]
    values: bool

    def _identity(self) -> tuple[object, ...]:
        return (*(id(each) for each in self.functions), self.key, self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Request) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


@dataclass(eq=False)
class Log:
    """The launches of one `checked_launches`, in order.

    Attributes:
        kernels: The JIT function and the lowered kernel of those that could be read.
    """

    memory: Memory
    launches: list[Launch] = field(default_factory=list)
    kernels: list[tuple[Any, Kernel]] = field(default_factory=list)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all launches."""
        return tuple(each for launch in self.launches for each in launch.findings)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Of all launches."""
        return tuple(each for launch in self.launches for each in launch.undecided)


@contextmanager
def checked_launches(
    memory: Memory | None = None, *, values: bool = False, configuration: int = 0
) -> Iterator[Log]:
    """Execute and judge every launch of a JIT function until the context ends.

    The process must be one in which Triton has an active driver that names a GPU as
    its target; none is needed (`fuzz.boot` installs a stub).

    Args:
        memory: What is known of the tensors beforehand.
        values: Whether floats are computed too, in value mode, so that outputs land in
            their tensors; else only what addresses, masks and integers need. Launches
            that hand floats to each other need one mode: in the other, none land.
        configuration: Which of its configurations an autotuned kernel has, counted
            from 0 and around: on a GPU its timings decide.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    log = Log(memory=Memory() if memory is None else memory)

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        _launch(log, function, args, kwargs, grid, warmup=warmup, values=values)

    def tuned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        left = list(tuner.prune_configs(kwargs))
        chosen = left[configuration % len(left)]
        constants = chosen.all_kwargs()
        if chosen.pre_hook is not None:
            chosen.pre_hook({**tuner.nargs, **kwargs, **constants})
        return tuner.fn.run(*args, **kwargs, **constants)

    before = JITFunction.run, Autotuner.run
    JITFunction.run, Autotuner.run = run, tuned
    try:
        yield log
    finally:
        JITFunction.run, Autotuner.run = before


def _launch(
    log: Log,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grid: Any,
    *,
    warmup: bool,
    values: bool,
) -> None:
    from triton import knobs
    from triton.runtime import driver

    kwargs["debug"] = False
    kwargs["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    for hook in function.pre_run_hooks:
        hook(*args, **kwargs)
    device = driver.active.get_current_device()
    _, _, target, backend, binder = function.device_caches[device]
    bound, specialization, options = binder(*args, **kwargs)
    if warmup:
        return

    def lower() -> str:
        packed = function._pack_args(backend, kwargs, bound, specialization, options)  # noqa: SLF001
        return lowered(function, target, backend, packed)

    key = f"{specialization}{options}{_constants(bound, specialization)}"
    request = _Request(
        functions=_with_callees(function), key=key, lower=lower, values=values
    )
    if callable(grid):
        grid = grid(bound)
    x, y, z = (*(int(each) for each in grid), 1, 1)[:3]
    try:
        kernel = _kernel(request)
    except TtirError as error:
        log.launches.append(_not_understood(_name(function), (x, y, z), error))
        return
    log.kernels.append((function, kernel))
    run = Run(kernel, (x, y, z), log.memory)
    names, given = _arguments(function, bound, specialization)
    kinds = kernel.module.kernel.parameter_types
    entering = [
        argument_value(argument, kind, name, log.memory, floats=values)
        for name, argument, kind in zip(names, given, kinds, strict=True)
    ]
    run.start(entering)
    log.launches.append(
        Launch(
            kernel=kernel.name,
            grid=(x, y, z),
            accesses=run.accesses,
            lanes=run.lanes,
            findings=tuple(run.findings.values()),
            undecided=tuple(run.undecided.values()),
        )
    )


def _with_callees(function: Any) -> tuple[Any, ...]:
    """A JIT function and those that its code names, directly or through others."""
    from triton.runtime.jit import JITFunction

    found = [function]
    for each in found:
        plain = inspect.unwrap(each.fn)
        names = plain.__code__.co_names
        known = [plain.__globals__.get(name) for name in names]
        # `module.function` names a module and an attribute of it.
        modules = [value for value in known if isinstance(value, ModuleType)]
        known += [vars(module).get(name) for module in modules for name in names]
        for value in known:
            if isinstance(value, JITFunction) and not any(
                value is other for other in found
            ):
                found.append(value)
    return tuple(found)


def _constants(bound: dict[str, Any], specialization: list[Any]) -> str:
    """Values that are compiled in, which a specialisation leaves out."""

    def of(value: Any, kind: Any) -> str:
        if (
            isinstance(kind, tuple | list)
            and kind
            and isinstance(kind[0], tuple | list)
        ):
            return str([of(v, k) for v, k in zip(value, kind, strict=True)])
        return ""

    parts = []
    for value, (kind, _) in zip(bound.values(), specialization, strict=True):
        parts.append(_text(value) if kind == "constexpr" else of(value, kind))
    return "|".join(parts)


def _text(value: Any) -> str:
    if hasattr(value, "fn"):
        return f"{value.fn.__module__}.{value.fn.__qualname__}@{id(value)}"
    return f"{type(value).__name__}:{value}"


def _arguments(
    function: Any, bound: dict[str, Any], specialization: list[Any]
) -> tuple[list[str], list[Any]]:
    """Arguments that are not compiled in; tuples and tensor descriptors flattened."""
    names: list[str] = []
    given: list[Any] = []

    def visit(name: str, kind: Any, value: Any) -> None:
        if isinstance(kind, tuple | list):
            for at, (inner, each) in enumerate(zip(kind, value, strict=True)):
                visit(f"{name}[{at}]", inner, each)
        elif kind.startswith("tensordesc"):
            parts = _described(value)
            names.extend([name] * len(parts))
            given.extend(parts)
        elif kind != "constexpr":
            names.append(name)
            given.append(value)

    for name, value, (kind, _) in zip(
        function.arg_names, bound.values(), specialization, strict=True
    ):
        visit(name, kind, value)
    return names, given


def _described(descriptor: Any) -> list[Any]:
    """What Triton passes in the place of a tensor descriptor once it is pointers.

    Base, sizes and strides, whether padding is NaN and (from 3.7 on) values are
    rounded; sizes and strides once more.
    """
    extents = [*descriptor.shape, *descriptor.strides]
    rounded = getattr(descriptor, "round_f32_to_tf32", None)
    flags = [descriptor.padding == "nan", *([] if rounded is None else [rounded])]
    return [descriptor.base, *extents, *flags, *extents]


@lru_cache(maxsize=_KERNELS_MAX)
def _kernel(request: _Request) -> Kernel:
    module = parse(request.lower())
    name = _name(request.functions[0])
    return Kernel(name=name, module=module, values=request.values)


def _name(function: Any) -> str:
    name: str = inspect.unwrap(function.fn).__qualname__
    return name


def _not_understood(name: str, grid: tuple[int, int, int], error: TtirError) -> Launch:
    """A launch of a kernel whose text has a form that the reader does not know."""
    doubt = Undecided(kernel=name, reason=f"its TTIR: {error}", place="")
    return Launch(
        kernel=name, grid=grid, accesses=0, lanes=0, findings=(), undecided=(doubt,)
    )


def lowered(function: Any, target: Any, backend: Any, packed: Any) -> str:
    """TTIR of a kernel with locations, as Triton's front end makes it.

    Args:
        function: The JIT function.
        target: The GPU to lower for.
        backend: Triton's compiler for it.
        packed: Options, signature, constants and attributes.

    Raises:
        triton.CompilationError: When the kernel does not compile, as on a GPU.
    """
    from triton._C.libtriton import ir
    from triton.compiler.compiler import ASTSource

    options, signature, constants, attributes = packed
    source = ASTSource(function, signature, constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    module = stages["ttir"](module, {})
    text: str = module.str()
    if "tt.tensordesc" in text:
        text = _through_pointers(module, context)
    return text


def _through_pointers(module: Any, context: Any) -> str:
    """A module's text with descriptors written out as Triton does for older GPUs.

    What they load and store is the same: lanes outside of the tensor are masked.
    """
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(context)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    manager.run(module, "make_ttir")
    text: str = module.str()
    return text

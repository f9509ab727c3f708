"""Triton's interpreter with its gaps closed, as far as attention kernels meet them.

Seen in triton 3.6 and 3.7: bf16 and fp8 are raw integers to its arithmetic and dot, its
casts of them lose carries, bf16 has no constants, parameter annotations are ignored.
Integers are right as they are: numpy's int32 wraps as the GPU's i32 does, loads keep
their type, and an argument of 2**31 or more is i64.
"""
# The interpreter has no public face.
# ruff: noqa: SLF001

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import _normalize_ty


class InterpreterGap(NotImplementedError):
    """An operation that the interpreter, even as corrected here, gets wrong."""


# Formats that the interpreter keeps as raw integers, and torch's name for them.
_RAW = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}


def _widened(handle: Any) -> np.ndarray[Any, Any]:
    """The numbers of a value; raw formats as float32."""
    kind = _RAW.get(handle.dtype.scalar)
    data: np.ndarray[Any, Any] = handle.data
    if kind is None:
        return data
    bits = np.ascontiguousarray(data)
    signed = bits.view(np.int16 if bits.itemsize == 2 else np.int8)
    return torch.from_numpy(signed).view(kind).float().numpy()


def _stored(numbers: np.ndarray[Any, Any], dtype: Any) -> Any:
    """Numbers as a value of a type, rounded to nearest even."""
    kind = _RAW.get(dtype.scalar)
    if kind is None:
        data = numbers.astype(interpreter._get_np_dtype(dtype.scalar))
    else:
        single = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
        signed = single.to(kind).view(torch.int16 if kind.itemsize == 2 else torch.int8)
        data = signed.numpy().view(interpreter._get_np_dtype(dtype.scalar))
    return interpreter.TensorHandle(data, dtype.scalar)


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast_impl(self: Any, src: Any, dst_type: Any, *rest: Any) -> Any:
        if src.dtype.scalar in _RAW or dst_type.scalar in _RAW:
            return _stored(_widened(src), dst_type)
        return original(self, src, dst_type, *rest)

    return cast_impl


def _binary(original: Callable[..., Any]) -> Callable[..., Any]:
    bitwise = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    compares = (
        *(np.less, np.less_equal, np.greater),
        *(np.greater_equal, np.equal, np.not_equal),
    )

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar not in _RAW or op in bitwise:
            return original(self, lhs, rhs, op)
        result = op(_widened(lhs), _widened(rhs))
        if op in compares:
            return interpreter.TensorHandle(result, tl.int1)
        return _stored(result, lhs.dtype)

    return binary_op


def _dot(_builder: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
    product = np.matmul(_widened(a), _widened(b), dtype=d.data.dtype)
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def _refused(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original, but raw formats are a gap."""

    def guarded(self: Any, *operands: Any) -> Any:
        for each in operands:
            kind = getattr(getattr(each, "dtype", None), "scalar", None)
            if kind in _RAW:
                raise InterpreterGap(f"{original.__name__} of {kind}")
        return original(self, *operands)

    return guarded


def _refused_reduction(original: Callable[..., Any]) -> Callable[..., Any]:
    def check_tensor(self: Any, values: Any) -> None:
        original(self, values)
        for value in values:
            if value.dtype.scalar in _RAW:
                raise InterpreterGap(f"reduction of {value.dtype}")

    return check_tensor


def _annotated(original: Callable[..., Any]) -> Callable[..., Any]:
    """Integers whose parameter is annotated become that type, as the compiler does."""

    def init_args(self: Any, args_dev: Any, kwargs: Any) -> Any:
        args, named = original(self, args_dev, kwargs)
        forced = {
            name: getattr(tl, {"i64": "int64", "u64": "uint64"}[kind])
            for name, annotation in self.fn.__annotations__.items()
            if (kind := str(_normalize_ty(annotation))) in {"i64", "u64"}
        }

        def convert(name: str, value: Any) -> Any:
            if name not in forced or type(value) is not int:
                return value
            return tl.tensor(_stored(np.array([value]), forced[name]), forced[name])

        names = self.arg_names[: len(args)]
        positional = [convert(*pair) for pair in zip(names, args, strict=True)]
        return positional, {name: convert(name, each) for name, each in named.items()}

    return init_args


def _index(value: Any) -> int:
    """What a loop's bound is, as Python's range asks for it."""
    return int(value.handle.data.item())


class _PatchedOnce:
    """`_patch_lang`, which Triton calls at each call of a device function, done once.

    It takes milliseconds, and half of the time of a launch.
    """

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self._original = original
        self._scopes: dict[frozenset[int], Any] = {}

    def __call__(self, fn: Any) -> Any:
        languages = frozenset(
            id(value)
            for value in fn.__globals__.values()
            if value is tl or value is tl.core
        )
        if languages not in self._scopes:
            scope = self._original(fn)
            # In 3.6 a number is int() of an array with one axis, an error in numpy 2.5.
            scope.set_attr(tl.tensor, "__index__", _index)
            self._scopes[languages] = scope
        return interpreter._LangPatchScope()

    def restore(self) -> None:
        """Give the language back, last change first."""
        for scope in reversed(self._scopes.values()):
            scope.restore()


@contextmanager
def corrected_interpreter() -> Iterator[None]:
    """Close the gaps for kernels launched inside, and put everything back.

    What stays wrong raises `InterpreterGap`, wrapped by Triton in an
    `InterpreterError`. The overflow sanitiser is off: it doubles the cost of integer
    operations, and asserts nothing outside of debug mode.
    """
    patched = _PatchedOnce(interpreter._patch_lang)
    builder = interpreter.InterpreterBuilder
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    cast = _cast(builder.cast_impl)
    changes: list[tuple[Any, str, Any]] = [
        (builder, "cast_impl", cast),
        (builder, "create_fp_to_fp", _cast(builder.create_fp_to_fp)),
        (builder, "binary_op", _binary(builder.binary_op)),
        (builder, "create_dot", _dot),
        (builder, "unary_op", _refused(builder.unary_op)),
        (builder, "create_fma", _refused(builder.create_fma)),
        (builder, "create_clampf", _refused(builder.create_clampf)),
        (builder, "get_bf16", lambda _, x: _stored(np.array([x]), tl.bfloat16)),
        (interpreter.interpreter_builder, "options", options),
        (interpreter, "_patch_lang", patched),
        (
            interpreter.ReduceScanOpInterface,
            "check_tensor",
            _refused_reduction(interpreter.ReduceScanOpInterface.check_tensor),
        ),
        (
            interpreter.GridExecutor,
            "_init_args_hst",
            _annotated(interpreter.GridExecutor._init_args_hst),
        ),
    ]
    missing = object()
    undo = [
        (holder, name, vars(holder).get(name, missing)) for holder, name, _ in changes
    ]
    try:
        for holder, name, value in changes:
            setattr(holder, name, value)
        with np.errstate(all="ignore"):
            yield
    finally:
        patched.restore()
        for holder, name, value in reversed(undo):
            if value is missing:
                delattr(holder, name)
            else:
                setattr(holder, name, value)

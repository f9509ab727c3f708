"""Arguments of a launch as values: pointers into their views, and integers."""

from __future__ import annotations

from typing import Any

from invariants.memory.frames import Value
from invariants.memory.lanes import constant
from invariants.memory.pointers import Pointer
from invariants.memory.regions import Memory, Region
from invariants.memory.ttir import Type


def argument_value(
    argument: Any, kind: Type, name: str, memory: Memory, *, floats: bool = False
) -> Value | None:
    """What a kernel's argument is: a pointer into its view, a number, or no value.

    Args:
        argument: What the launch was given.
        kind: The parameter's type.
        name: The parameter's name.
        memory: What is known of tensors.
        floats: Whether floating-point numbers are values, too.
    """
    if kind.pointer:
        if argument is None:
            return None
        region: Region | None
        if hasattr(argument, "untyped_storage"):
            region = memory.region(argument, name=name)
        else:
            address = int(argument.data_ptr()) if hasattr(argument, "data_ptr") else 0
            region = memory.at([address]).get(address)
        return Pointer(
            regions=(region,),
            which=None,
            offset=constant(0, 64),
            unit_bytes=max(kind.bits, 8) // 8,
            element_bits=kind.bits,
            integer=bool(kind.element.startswith("i")),
        )
    if kind.integer:
        value = int(argument)
        if kind.bits > 1:
            low = -(1 << (kind.bits - 1))
            value = (value - low) % (1 << kind.bits) + low
        return constant(value, kind.bits)
    if floats and kind.floating:
        from invariants.memory.float_types import filled

        return filled(kind.element, (), float(argument))
    return None

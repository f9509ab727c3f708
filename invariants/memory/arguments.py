"""Arguments of a launch as values: pointers into their views, and integers."""

from __future__ import annotations

from typing import Any

from invariants.memory.frames import Value
from invariants.memory.lanes import constant
from invariants.memory.pointers import Pointer
from invariants.memory.regions import Memory, Region
from invariants.memory.ttir import Type


def argument_value(
    argument: Any, kind: Type, name: str, memory: Memory
) -> Value | None:
    """What a kernel's argument is: a pointer into its view, an integer, or no value."""
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
    return None

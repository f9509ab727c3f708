"""The memory that kernels may touch: views of tensors, and who owns their pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from invariants.memory.pools import sparse_flags

# Runs of bytes kept apart where floats were stored; more are taken for one.
_RUNS_MAX = 64

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Ownership:
    """Which pages of a tensor an access may touch.

    Attributes:
        stride: Elements from page to page.
        period: Elements after which the pages come again, as they do where each head
            has a plane of its own; 0 where they do not.
        readable: Sorted page ids.
        writable: The same, for stores.
        states: What a page is, for messages: `null`, `freed`, `shared`, ….
    """

    stride: int
    period: int
    readable: Ints
    writable: Ints
    states: Mapping[int, str]

    @staticmethod
    def of(
        tensor: Any,
        *,
        readable: Iterable[int],
        writable: Iterable[int] = (),
        axis: int = 0,
        states: Mapping[int, str] | None = None,
    ) -> Ownership:
        """Pages along one axis of a tensor; other axes lie inside pages, or around all.

        Raises:
            ValueError: Pages interleave with another axis.
        """
        stride, count = tensor.stride(axis), tensor.shape[axis]
        axes = zip(tensor.stride(), tensor.shape, strict=True)
        larger = [step for step, size in axes if size > 1 and step > stride]
        period = min(larger, default=0)
        if larger and period < stride * count:
            raise ValueError(
                f"{count} pages along axis {axis} are {stride} elements apart, and an "
                f"axis has a stride of {period}: pages would interleave"
            )
        return Ownership(
            stride=stride,
            period=period,
            readable=np.unique(np.asarray(list(readable), dtype=np.int64)),
            writable=np.unique(np.asarray(list(writable), dtype=np.int64)),
            states=states or {},
        )

    def pages(self, elements: Ints) -> Ints:
        """Which page each element, counted from the view's start, is in."""
        return (elements % self.period if self.period else elements) // self.stride

    def allows(self, pages: Ints, *, write: bool) -> Bools:
        """Which of these pages an access may touch."""
        allowed = self.writable if write else self.readable
        if not len(allowed):
            return np.zeros(pages.shape, dtype=np.bool_)
        at = np.searchsorted(allowed, pages).clip(0, len(allowed) - 1)
        result: Bools = allowed[at] == pages
        return result


@dataclass(eq=False)
class Storage:
    """Bytes that tensors share, and what is known of them.

    Attributes:
        written: Of scratch, which bytes were stored to; None for other memory.
        doubtful: Bytes whose content is not computed here; None for none.
        blurred: Runs of bytes, first and past the last, in which floats were stored
            that are not computed either.
    """

    base: int
    content: NDArray[np.uint8]
    written: Bools | None = None
    doubtful: Bools | None = None
    blurred: list[tuple[int, int]] = field(default_factory=list)
    elements: dict[str, NDArray[Any]] = field(default_factory=dict)

    def blur(self, first: int, last: int) -> None:
        """Note that floats were stored somewhere from byte `first` to before `last`."""
        near = [each for each in self.blurred if each[0] <= last and first <= each[1]]
        if len(self.blurred) - len(near) >= _RUNS_MAX:
            near = self.blurred
        apart = [each for each in self.blurred if each not in near]
        ends = [(first, last), *near]
        self.blurred = [*apart, (min(a for a, _ in ends), max(b for _, b in ends))]

    def sharpen(self) -> None:
        """Turn blurred runs into doubtful bytes, which can be known again."""
        if self.doubtful is None:
            self.doubtful = sparse_flags(len(self.content))
        for first, last in self.blurred:
            self.doubtful[first:last] = True
        self.blurred = []

    def as_integers(self, bits: int) -> NDArray[Any]:
        """The bytes as signed integers of a width, whole ones only."""
        name = f"int{max(bits, 8)}"
        if name not in self.elements:
            size = max(bits, 8) // 8
            whole = len(self.content) // size * size
            self.elements[name] = self.content[:whole].view(name)
        return self.elements[name]


@dataclass(frozen=True, eq=False)
class Region:
    """A view of a storage, as a kernel's argument.

    Attributes:
        name: Of the argument, or an address.
        base: Address of element 0.
        element_bytes: Of the tensor's own dtype.
        size_bytes: From the first to past the last byte.
        run_bytes: Length of each contiguous run of bytes.
        gaps: (stride, count) in bytes of the axes above a run, largest stride first.
    """

    name: str
    storage: Storage
    base: int
    element_bytes: int
    size_bytes: int
    run_bytes: int
    gaps: tuple[tuple[int, int], ...]
    read_only: bool = False
    ownership: Ownership | None = None

    @property
    def whole(self) -> bool:
        """Whether the view is one run, so that bounds say everything."""
        return not self.gaps

    def contains(self, first: Ints, last: Ints) -> Bools:
        """Whether bytes `first` to `last` from the base lie in one run of the view."""
        inside = (first >= 0) & (last < self.size_bytes) & (last >= first)
        rest = np.where(inside, first, 0)
        for stride, count in self.gaps:
            at = np.minimum(rest // stride, count - 1)
            rest = rest - at * stride
        result: Bools = inside & (rest + (last - first) < self.run_bytes)
        return result


class Memory:
    """Every tensor that launches of one case may know of.

    Tensors that are handed to a kernel become known by themselves. Say beforehand what
    the case knows better: who owns a pool's pages, what must not be written, what is
    scratch, and where a pointer argument may reach beyond its own view.
    """

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._owned: dict[tuple[int, int], Ownership] = {}
        self._read_only: set[int] = set()
        self._whole: set[int] = set()
        self._tables: dict[int, Region] = {}
        self._keep: list[Any] = []

    def own(self, tensor: Any, ownership: Ownership) -> None:
        """Judge accesses through this view by its pages."""
        self._owned[tensor.data_ptr(), tensor.element_size()] = ownership

    def read_only(self, tensor: Any) -> None:
        """Take every store into this tensor's storage for a fault."""
        self._read_only.add(self.storage(tensor).base)

    def scratch(self, tensor: Any) -> None:
        """Take reads of what no launch has stored to for faults."""
        storage = self.storage(tensor)
        storage.written = np.zeros(len(storage.content), dtype=np.bool_)

    def whole_storage(self, tensor: Any) -> None:
        """Let a pointer to this view reach all of its storage, as its contract says."""
        self._whole.add(tensor.data_ptr())

    def table(self, tensor: Any, *, name: str) -> None:
        """Make a tensor known whose address a kernel finds in a table of pointers."""
        self._tables[tensor.data_ptr()] = self.region(tensor, name=name)

    @property
    def has_tables(self) -> bool:
        """Whether tensors were made known by `table`."""
        return bool(self._tables)

    def storage(self, tensor: Any) -> Storage:
        """The storage of a tensor; kept alive as long as this memory."""
        untyped = tensor.untyped_storage()
        base, size = untyped.data_ptr(), untyped.nbytes()
        known = self._storages.get(base)
        if known is not None and len(known.content) == size:
            return known
        self._keep.append(tensor)
        made = Storage(base=base, content=_bytes_of(tensor, size))
        self._storages[base] = made
        return made

    def region(self, tensor: Any, *, name: str) -> Region:
        """The view that a tensor argument is."""
        storage = self.storage(tensor)
        size = tensor.element_size()
        base = tensor.data_ptr()
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if base in self._whole:
            shape, strides = (
                ((storage.base + len(storage.content) - base) // size,),
                (1,),
            )
        run, gaps = _runs(shape, strides, size)
        end = run + sum((count - 1) * stride for stride, count in gaps)
        return Region(
            name=name,
            storage=storage,
            base=base,
            element_bytes=size,
            size_bytes=end if all(shape) else 0,
            run_bytes=run,
            gaps=gaps,
            read_only=storage.base in self._read_only,
            ownership=self._owned.get((base, size)),
        )

    def at(self, addresses: Iterable[int]) -> dict[int, Region]:
        """Regions that hold the addresses which a kernel has read from a table."""
        found: dict[int, Region] = {}
        for address in addresses:
            (*_, region), _ = self.placed(np.array([address], dtype=np.int64))
            if region is None:
                continue
            if region not in self._tables.values():
                # Nothing is known of what lies before it in its storage.
                region = _bytes_from(address, region)
            found[address] = region
        return found

    def placed(self, addresses: Ints) -> tuple[tuple[Region | None, ...], Ints]:
        """Regions that hold addresses which a kernel has computed.

        A byte between the rows of one view may be one of another's, as where states
        share pages: a view that has the byte comes before one that only reaches
        around it, and a whole storage comes last.

        Args:
            addresses: Of any shape.

        Returns:
            None and each region, and which of them holds each address.
        """
        tables = tuple(self._tables.values())
        stores = tuple(
            _bytes_from(each.base, self._whole_storage(each))
            for each in self._storages.values()
        )
        regions: list[Region | None] = [None]
        which = np.zeros(addresses.shape, dtype=np.int64)

        def place(region: Region, held: Bools) -> None:
            held = held & (which == 0)
            if bool(held.any()):
                if region not in regions:
                    regions.append(region)
                which[held] = regions.index(region)

        for region in tables:
            place(region, addresses == region.base)
        for region in tables:
            first = addresses - region.base
            place(region, region.contains(first, first))
        for region in (*tables, *stores):
            first = addresses - region.base
            place(region, (first >= 0) & (first < region.size_bytes))
        return tuple(regions), which

    def _whole_storage(self, storage: Storage) -> Region:
        size = len(storage.content)
        return Region(
            name="",
            storage=storage,
            base=storage.base,
            element_bytes=1,
            size_bytes=size,
            run_bytes=size,
            gaps=(),
            read_only=storage.base in self._read_only,
        )


def _bytes_from(address: int, region: Region) -> Region:
    """The bytes of a region from an address on, named by it."""
    size = region.size_bytes - (address - region.base)
    return replace(
        region,
        name=f"memory at {address:#x}",
        base=address,
        size_bytes=size,
        run_bytes=size,
    )


def _runs(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Length of a view's contiguous runs, and the axes above them, in bytes."""
    axes = sorted(
        ((s * size, n) for n, s in zip(shape, strides, strict=True) if n > 1 and s > 0),
    )
    run = size
    gaps: list[tuple[int, int]] = []
    for stride, count in axes:
        if stride <= run and not gaps:
            # Smaller than the run, rows overlap, as those of a sliding view do.
            run = run + stride * (count - 1)
        elif gaps and stride == gaps[-1][0] * gaps[-1][1]:
            gaps[-1] = (gaps[-1][0], gaps[-1][1] * count)
        else:
            gaps.append((stride, count))
    return run, tuple(reversed(gaps))


def _bytes_of(tensor: Any, size: int) -> NDArray[np.uint8]:
    import torch

    if tensor.device.type == "meta" or not size:
        return np.zeros(0, dtype=np.uint8)
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    content: NDArray[np.uint8] = flat.numpy()
    return content

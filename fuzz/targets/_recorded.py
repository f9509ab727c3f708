"""What a function of the tree returns, seen on its way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def recorded(module: Any, name: str, results: list[Any]) -> Iterator[None]:
    """Append what a function of a module returns, each time it is called by name."""
    function = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        results.append(result)
        return result

    with mock.patch.object(module, name, call):
        yield

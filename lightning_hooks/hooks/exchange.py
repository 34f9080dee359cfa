"""Attributes of other people's objects that are exchanged for a while, such as a method on an instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def exchange(holder: object, **values: Any) -> Callable[[], None]:
    """Set attributes of an object in its dictionary, where no ``__setattr__`` sees it; return what puts back those before.

    An attribute that somebody else has exchanged since then stays: what they put there calls ours, or does without it.

    Args:
        holder: Any object with a dictionary.
        **values: The attributes by name.
    """
    own = vars(holder)
    before = {name: own[name] for name in values if name in own}
    own.update(values)

    def put_back() -> None:
        for name in [name for name, value in values.items() if own.get(name) is value]:
            if name in before:
                own[name] = before[name]
            else:
                del own[name]

    return put_back

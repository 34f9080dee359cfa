"""What ``package.module:name`` names on a command line: a model, or a data set, or what makes one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn


def made_by(source: str, option: str) -> Any:
    """What ``package.module:name`` names, called if it is a function or a class; the working directory is looked in first.

    Args:
        source: The name.
        option: The option that it is given to, for messages.

    Raises:
        ValueError: If it is no such name, or cannot be imported.
    """
    module, _, name = source.partition(":")
    if not (module and name):
        raise ValueError(f"{option} must be package.module:name; got {source!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{option} {source} cannot be imported: {error}.") from None
    finally:
        sys.path.pop(0)
    return found() if callable(found) and not isinstance(found, nn.Module) else found

"""On PYTHONPATH it hides all packages but those that a machine with a GPU has, as `make gpu` finds them."""

import importlib.metadata as metadata
import re
import sys
from importlib.machinery import PathFinder

PACKAGES = ("torch", "lightning", "torchmetrics", "triton", "pytest", "transformers", "timm", "numpy", "setuptools")


def name_of(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def needed(names):
    """These distributions, and what they require."""
    found, waiting = set(), list(names)
    while waiting:
        name = name_of(waiting.pop())
        if name not in found:
            found.add(name)
            try:
                lines = metadata.requires(name) or ()
            except metadata.PackageNotFoundError:
                continue
            waiting += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]
    return found


THERE = needed(PACKAGES)
modules = metadata.packages_distributions().items()
HIDDEN = {top for top, names in modules if not any(name_of(name) in THERE for name in names)} - {"lightning_hooks"}


class Bare(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.partition(".")[0] in HIDDEN else PathFinder.find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        return (each for each in PathFinder.find_distributions(*args, **kwargs) if name_of(each.metadata["Name"]) in THERE)


sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]

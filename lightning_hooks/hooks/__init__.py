"""Hooks in plain torch: registration, selection of modules, tensors inside any output."""

from lightning_hooks.hooks.listener import Faults, Gate, GradientRecorder, Listener, OutputRecorder, Recorder, all_closed
from lightning_hooks.hooks.manager import HOOK_KINDS, HookManager, with_hooks
from lightning_hooks.hooks.selection import ModuleSelector, select_modules
from lightning_hooks.hooks.tensors import float_tensors, tensors_in
from lightning_hooks.hooks.wrappers import Meter, counted, guarded, sampled, synchronized, timed

__all__ = [
    "HOOK_KINDS",
    "Faults",
    "Gate",
    "GradientRecorder",
    "HookManager",
    "Listener",
    "Meter",
    "ModuleSelector",
    "OutputRecorder",
    "Recorder",
    "all_closed",
    "counted",
    "float_tensors",
    "guarded",
    "sampled",
    "select_modules",
    "synchronized",
    "tensors_in",
    "timed",
    "with_hooks",
]

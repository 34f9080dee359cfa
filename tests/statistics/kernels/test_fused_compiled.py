"""The Triton kernels compiled as they are launched, which needs no device. The interpreter checks values, not types."""

import os
import re

import pytest
import torch

from lightning_hooks.statistics.kernels import Bounds, Units
from lightning_hooks.statistics.kernels.fused import FusedKernels
from lightning_hooks.statistics.rows import Clock, empty_table

triton = pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter compiles nothing"),
]
POINTERS = {torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int8: "*i8"}


@pytest.fixture(autouse=True)
def path():
    """One path only."""


class Launches:
    """In place of the kernels: what each was launched with."""

    PARTIAL = 10

    def __init__(self):
        self.found = []

    def __getattr__(self, name):
        return {(1,): self.launched(name), (1024,): self.launched(name)}

    def launched(self, name):
        return lambda *args, **constants: self.found.append((name, args, constants))


def compiled(name, args, constants, capability):
    """What Triton makes of a launch for devices of a compute capability."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lightning_hooks.statistics.kernels import fused_kernels

    kernel = getattr(fused_kernels, name)
    signature, constants = {}, dict(constants)
    for parameter, value in zip(kernel.params, args, strict=False):
        argument = parameter.name
        if isinstance(value, torch.Tensor):
            signature[argument] = POINTERS[value.dtype]
        elif isinstance(value, float):
            signature[argument] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:  # it is a constant then
            constants[argument] = value
        else:
            signature[argument] = "i32" if value < 2**31 else "i64"
    signature |= dict.fromkeys(constants, "constexpr")
    return triton.compile(ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", capability, 32)).asm


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("shape", [(2**31 + 3, 1), (5, 3)], ids=["large", "small"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_each_launch_compiles_and_addresses_are_of_64_bits(dtype, shape, capability):
    fast = FusedKernels()
    fast._kernels = launches = Launches()
    values = torch.empty(shape, dtype=dtype, device="meta")
    everything = {
        "bounds": Bounds(values, -0.5, None, values.numel()),
        "units": Units(shape[1], 1, torch.empty(shape[1], dtype=torch.bool, device="meta")),
        "moments": True,
    }
    for options in ({}, everything):
        fast.record(empty_table(1, "meta"), 0, values, Clock("meta"), **options)
    assert [name for name, _, _ in launches.found] == ["partials", "into_row"] * 2
    for name, args, constants in launches.found:
        made = compiled(name, args, constants, capability)
        assert made["cubin"]
        if name == "partials":  # of the other the offsets are those of 1024 programs at most
            assert set(re.findall(r"tt\.addptr .* tensor<\d+x(i\d+)>", made["ttir"])) == {"i64"}, made["ttir"]


def test_a_kernel_is_compiled_for_what_makes_it_faster_and_nothing_else():
    """Each value of another argument would be a kernel more to wait for in the first steps of a fit."""
    from lightning_hooks.statistics.kernels import fused_kernels

    for kernel in (fused_kernels.partials, fused_kernels.into_row):
        specialized = {each.name for each in kernel.params if not (each.is_constexpr or each.do_not_specialize)}
        numbers = {name for name in specialized if not name.endswith("_ptr")}
        assert numbers == ({"n", "low", "high"} if kernel is fused_kernels.partials else {"units"})  # all but n are floats

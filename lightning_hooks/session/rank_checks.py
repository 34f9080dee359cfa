"""What ranks check when training starts: that all of them observe, and observe the same with the same arguments."""

from __future__ import annotations

import hashlib
import itertools
import sys
import warnings
from collections.abc import Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed

from lightning_hooks.session.member import Member
from lightning_hooks.statistics.reduction import all_ranks, all_reduce

PATIENCE = timedelta(seconds=30)  # how long a rank waits for the others before it names those that are missing

_VERSION = "lightning_hooks.__version__"
_ALIKE = {"callbacks": "list the same callbacks in the same order on every rank", _VERSION: "install one version on every rank"}
_MEETINGS = itertools.count()  # in this process


def wait_for_ranks(name: str) -> None:
    """Wait until every rank has come here, by the store of the process group: in a collective nobody learns who is missing.

    Args:
        name: What starts, for messages.

    Raises:
        RuntimeError: If another rank has not come before a collective that it may be in would end with a time-out.
    """
    among = all_ranks()
    if among is None:
        return
    from torch.distributed.distributed_c10d import _get_default_store  # not in every build, and without a public name

    store: Any = _get_default_store()
    here = f"lightning_hooks/{next(_MEETINGS)}"
    try:
        store.set(f"{here}/{among.number}", name)
        turn = store.add(here, 1)
        if turn == among.count:
            store.set(f"{here}/all", "")
    except (AttributeError, RuntimeError):  # there is none, or it stands for one
        return
    whole = store.timeout * 0.75
    first = min(PATIENCE, whole / 3)
    for patience in (first, whole - first):
        try:
            store.wait([f"{here}/all"], patience)
            return
        except torch.distributed.DistStoreError:
            of_turn = range(among.count) if turn == 1 else ()  # one asks for all
            missing = [str(rank) for rank in of_turn if not store.check([f"{here}/{rank}"])]
            who = f"rank {', '.join(missing[:8])}{', …' * (len(missing) > 8)}" if missing else "another rank"
            text = (
                f"{name}: {who} is missing at the start. Ranks merge their numbers, and would wait for each other forever: give "
                "every rank the same callbacks in the same order."
            )
            if patience is not first:
                raise RuntimeError(text) from None
            if turn == 1:
                warnings.warn(f"{text} This rank waits for {whole}.", stacklevel=2)


def check_ranks_agree(member: Member) -> None:
    """Check, when training starts, that every rank has the same sites, parameters and arguments; a small collective.

    The arguments are those that say what the member has, when ranks merge it, and when they end training, as they hold here.

    Raises:
        RuntimeError: If ranks differ, on all of them: their tables could not be merged, or one would wait for the others forever.
    """
    name, collector, settings = member.name, member.live, member.settings
    among, names = all_ranks(), collector.names
    if among is None:
        return
    packed = collector.tables.pack()
    compared = ("every_n_steps", "check_every_n_steps", "max_overhead", "learning", "functional", "histograms", "min_probability")
    arguments = {
        _VERSION: getattr(sys.modules["lightning_hooks"], "__version__", ""),
        "report_every_n_steps": member.windows.length,
        **{argument: getattr(settings, argument) for argument in compared},
        "on_alert": " and ".join(sorted(settings.actions & {"stop", "raise"})) or None,  # the others end no training
    }
    described = repr((name, names, sorted(arguments.items()))).encode()
    hashed = int.from_bytes(hashlib.sha256(described).digest()[:6], "big")  # exact in a float64
    marks = torch.tensor([float(hashed), float(len(names)), float(packed.numel())], dtype=packed.dtype, device=packed.device)
    ends = torch.cat((marks, -marks))
    all_reduce(ends, "max")
    if bool((ends[:3] == -ends[3:]).all()):
        return
    of_ranks: list[Any] = [None] * among.count
    torch.distributed.all_gather_object(of_ranks, (names, packed.numel(), {"callbacks": name, **arguments}))
    for argument in ("callbacks", *arguments):
        values = [of_rank[2].get(argument) for of_rank in of_ranks]
        differing = [rank for rank, value in enumerate(values) if value != values[0]]
        if differing:
            shown = ", ".join(f"{values[rank]!r} on rank {rank}" for rank in (0, *differing[:7]))
            raise RuntimeError(
                f"{name}: ranks have different values of {argument}: {shown}. They merge their numbers and decide together, and "
                f"would wait for each other forever: {_ALIKE.get(argument, f'give {argument}= alike on every rank')}."
            )
    raise RuntimeError(f"{name}: {_what_differs(of_ranks)} Numbers of all ranks are merged by their place: build the model and "
                       "choose modules= alike on every rank.")  # fmt: skip


def _what_differs(of_ranks: Sequence[tuple[Sequence[str], int, Any]]) -> str:
    """Say what the first rank that differs from rank 0 has."""
    first, size, _ = of_ranks[0]
    rank, (names, other_size, _) = next((place, known) for place, known in enumerate(of_ranks) if known[:2] != (first, size))
    if names == first:
        return f"its table has {size} numbers on rank 0 and {other_size} on rank {rank}, for the same sites."
    number, here, there = next((n, *pair) for n, pair in enumerate(zip_longest(first, names), 1) if pair[0] != pair[1])
    return (
        f"ranks have different sites or parameters, {len(first)} on rank 0 and {len(names)} on rank {rank}. Number "
        f"{number} is {here or 'missing'} on rank 0 and {there or 'missing'} on rank {rank}."
    )

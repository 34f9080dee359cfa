"""Watches a run for its first bad step: keeps the evidence, judges each step before its update, runs the bad one again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.step import Step
from lightning_hooks.declare.warn import warn
from lightning_hooks.diagnostics.nonfinite.checks import StepChecks
from lightning_hooks.hooks.generators import GeneratorWatch
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.hooks.tensors import number
from lightning_hooks.replay.blame import Blame, blame, describe_inputs
from lightning_hooks.replay.capsule import CapsuleWriter
from lightning_hooks.replay.rerun import StepRerun
from lightning_hooks.replay.results import ReplayResults
from lightning_hooks.replay.rows import BatchUnderWay, ChangedBuffers, Ring, StepEvidence, rows_of, samples_of

FEW = 1 << 16  # elements of the gradients that are looked at after each micro-batch


def _guarded(event: Callable[..., None]) -> Callable[..., None]:
    """An event in which an error is a warning, once, after which nothing is kept: it is the run's no more."""

    @wraps(event)
    def call(self: StepWatch, *args: Any, **kwargs: Any) -> None:
        try:
            event(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    return call


class StepWatch:
    """The evidence of one run. Without a call of :meth:`open` it does nothing.

    Attributes:
        results: What running the first bad step again has shown.
        on: Whether anything is kept.
        now: The training batch under way; None between two.
    """

    def __init__(self, host: Host, unobserved: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._host, self._unobserved = host, unobserved
        self.ring = Ring()
        self.results = ReplayResults(host, self.ring)
        self._buffers = ChangedBuffers()
        self.writer: CapsuleWriter | None = None
        self._generators: GeneratorWatch | None = None
        self.on = False
        self._on_host = host.setup.device.type == "cpu"
        self.now: BatchUnderWay | None = None
        self._suspect: BatchUnderWay | None = None  # the first micro-batch of the step whose flag is up
        self._recent: deque[BatchUnderWay] = deque()
        self._few: list[nn.Parameter] | None = None
        self._epoch, self._step, self._last = 0, 0, math.inf  # of the batch under way

    def open(self, writer: CapsuleWriter, keep_batches: int) -> None:
        """A monitor with ``capsule=`` joins the run."""
        self.writer, self._recent = writer, deque(maxlen=keep_batches)
        self._generators, self.on = GeneratorWatch(self._host.setup.device), True

    def close(self) -> None:
        """The run is over: let the model, its batches and its loaders go."""
        self.now = self._suspect = self._few = None
        self._recent.clear()
        self._buffers.clear()

    def _failed(self, error: Exception) -> None:
        StepWatch.close(self)
        self._generators, self.on = None, False
        warn(
            f"The evidence of bad steps is no longer kept: {type(error).__name__}: {error}. Training is not affected. Please "
            "report this."
        )

    # Events of the training loop. Those of each step guard themselves, without another call.

    def batch_start(self, batch_idx: int) -> None:
        """A training batch starts."""
        try:
            if batch_idx <= self._last:  # a new epoch; to ask the loop how far it is takes longer than all of this
                position = self._host.position
                self._epoch, self._step = position.epoch, position.global_step
            self._last = batch_idx
            rows = rows_of(*self._host.again.loader_iterators())
            self.now = now = BatchUnderWay(StepEvidence(self._epoch, batch_idx, self._step, rows))
            self.ring.add(now.evidence)
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``training_step`` is about to be called, with these arguments."""
        try:
            now = self.now
            if now is None or self._generators is None or not args:
                return
            now.in_forward = True
            if hasattr(type(args[0]), "__next__"):  # training_step(dataloader_iter) fetches by itself
                return
            batch = args[0]
            now.batch = type(batch)(batch) if type(batch) in (dict, list) else batch  # which a step may take entries from
            now.rest = tuple(args[1:]), dict(kwargs)
            self._recent.append(now)
            if self.results.own is None and self._on_host:
                self._buffers.keep(self._host)
            now.evidence.generators = self._generators.read()
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    @_guarded
    def returned(self, outputs: Any) -> None:
        """``training_step`` has returned."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self.now is not None and isinstance(loss, Tensor):
            self.now.in_forward, self.now.returned = False, loss.detach()

    def before_backward(self, loss: Any) -> None:
        """Backward starts: look at the loss, on an accelerator without waiting for it."""
        try:
            now = self.now
            if now is None or not isinstance(loss, Tensor) or not loss.is_floating_point():
                return
            now.in_forward, now.loss = False, loss.detach()
            if not self._buffers.known:
                self._buffers.after_forward()
            if loss.is_cpu and not loss.dim():
                value: Any = now.loss.tolist()
                now.evidence.flag = not math.isfinite(value)
            else:
                now.evidence.flag = ~torch.isfinite(now.loss).all()
            if now.evidence.flag is True and self._suspect is None:
                self._suspect = now
            if self._suspect is now and self.results.own is None and not self._host.setup.automatic_optimization:
                self.results.own = now.evidence, self._not_again(now, "that is done under automatic optimization only")
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    @_guarded
    def after_backward(self) -> None:
        """Backward is done. Of a step of several micro-batches a few gradients say which was the first bad one."""
        now = self.now
        if now is None or self._suspect is not None or self.results.own is not None:
            return
        if self._few is None:
            self._few, size = [], 0
            for parameter in sorted(self._host.model.parameters(), key=torch.Tensor.numel):
                size += parameter.numel()
                if size <= FEW or not self._few:
                    self._few.append(parameter)
        gradients = [p.grad for p in self._few if p.grad is not None and p.grad.layout == torch.strided]
        if gradients:
            total = torch.stack(torch._foreach_norm(gradients)).sum()
            bad = not math.isfinite(number(total)) if StepChecks.on_host(total) else ~torch.isfinite(total)
            now.evidence.flag = now.evidence.flag | bad
            self._suspect = now if now.evidence.flag is True else None

    def gradients(self, step: Step) -> None:
        """Gradients are ready, and the update has not been: the moment to judge the step, on the CPU."""
        try:
            suspect, self._suspect = self._suspect, None
            if self.now is not None:
                if self._host.setup.automatic_optimization or self.now.evidence.flag is not True:  # else it is that of its loss
                    self.now.evidence.step = step.global_step
                self._step = step.global_step + 1
            if (
                self.results.own is not None
                or self.now is None
                or not self._on_host
                or step.shards is not None
                or step.again
                or step.loss_scale is not None
                or not step.indices
                or not self._host.setup.automatic_optimization
            ):
                return
            norms = step.norms()
            if suspect is not None or (norms.is_cpu and not math.isfinite(sum(norms.tolist()))):
                guilty = suspect or self.now
                guilty.evidence.flag = True
                self._blame(guilty)
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    @_guarded
    def crashed(self, error: BaseException) -> None:
        """The run ends with an exception: if ``training_step`` raised it, run that step again."""
        now = self.now
        ours = isinstance(error, IndexError | RuntimeError | ValueError) and not isinstance(error, torch.OutOfMemoryError)
        alone = self.results.own is None and self._on_host and self._host.setup.world_size == 1
        if ours and alone and now is not None and now.in_forward:
            self._blame(now, crashed=True)

    def samples_of(self, epoch: int, batch: int) -> Sequence[int | str]:
        """The samples of a training batch; empty where they are not known any more, and with several ranks, which have others."""
        entry = self.ring.of(epoch, batch) if self._host.setup.world_size == 1 else None
        return () if entry is None else samples_of(entry.rows)

    # What is found.

    def _blame(self, guilty: BatchUnderWay, crashed: bool = False) -> None:
        found = self._run_again(guilty, crashed)
        self.results.own = guilty.evidence, found
        if self._host.setup.world_size == 1 or found.why_not or found.reproduced:  # else the bad values are another rank's to write
            self._write(guilty, "error" if crashed else "nonfinite", found)

    def _run_again(self, guilty: BatchUnderWay, crashed: bool) -> Blame:
        host, evidence = self._host, guilty.evidence
        why_not = host.again.why_not()
        if why_not or guilty.batch is None:
            return self._not_again(guilty, why_not or "its batch is not at hand")
        args, kwargs = guilty.rest
        scale = 1.0 / host.loss_scaling.accumulation
        before = guilty.loss / scale if guilty.returned is None and guilty.loss is not None else guilty.returned

        try:
            with self._unobserved():
                return blame(
                    host.model,
                    lambda: StepRerun(
                        host.model, lambda batch: host.again.run(batch, *args, **kwargs), host.setup.device, host.again.muted
                    ),
                    guilty.batch,
                    evidence.rows,
                    generators=evidence.generators,
                    buffers=self._buffers.pairs() if guilty is self.now else (),
                    scale=scale,
                    loss=before,
                    crashed=crashed,
                    eager=bool(compiled_regions(host.model)),
                )
        except Exception as error:  # noqa: BLE001  the run goes on
            warn(f"A bad step could not be run again: {type(error).__name__}: {error}. Training goes on, and no step is run again.")
            return Blame(samples=samples_of(evidence.rows), why_not=f"{type(error).__name__}: {error}")

    def _not_again(self, guilty: BatchUnderWay, why_not: str) -> Blame:
        rows, (seen, bad) = guilty.evidence.rows, describe_inputs(self._host.model, guilty.batch)
        picked = bad if rows is not None and all(row < len(rows) for row in bad) else ()
        return Blame(samples=samples_of(rows, picked), why_not=why_not, seen=seen)

    def _write(self, guilty: BatchUnderWay, kind: str, found: Blame | None) -> None:
        if self.writer is not None:
            buffers, before_update = self._buffers.named(self._host.model), self._on_host and kind == "nonfinite"
            self.writer.write(self._host, kind, guilty, found, buffers, with_state=before_update)

    # What alerts say of it.

    @_guarded
    def passed_on(self, alerts: Iterable[Alert]) -> None:
        """These alerts hold: write the capsule of the first of a kind that no step's judgement has written."""
        for alert in alerts if self.writer is not None else ():
            about = kind_of(alert.kind).about
            if about != "window" and alert.severity != "info" and alert.batch is not None and not alert.cause:
                kind = alert.kind if about == "batch" else about
                entry = self.ring.of(alert.epoch, alert.batch)
                if entry is not None and (kind != "nonfinite" or not self._on_host):
                    entry = self.ring.guilty(entry) if kind == "nonfinite" else entry
                    kept = next((one for one in self._recent if one.evidence is entry), BatchUnderWay(entry))
                    self._write(kept, kind, None)

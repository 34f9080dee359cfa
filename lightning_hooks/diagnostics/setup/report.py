"""How a model and its data are set up, parameter by parameter: what is out of the ordinary, collected once for the rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_hooks.diagnostics.setup.initial import NonfiniteWeight


@dataclass(frozen=True, slots=True)
class ParameterSetup:
    """How a parameter is set up at the end of an epoch, and whether it had a gradient in it.

    Attributes:
        elements: How many numbers it has.
        dimensions: How many dimensions.
        trains: Whether it requires a gradient.
        has_gradient: Whether it had one at any step, sampled or not; where no optimizer holds it, at any sampled batch.
        optimizers: The optimizers that hold it (``0-Adam``), one name for each time it is held.
        steps: How many steps they took in the epoch, sampled or not; the most of any.
        lr: Its learning rate; the largest where several optimizers hold it; None where none does.
        lr_peak: The largest learning rate that its schedule is known to have had or to be going to have; None as for ``lr``.
        unzeroed_steps: How many of these steps were taken with gradients that had not been zeroed since the step before.
        starts_at_zero: Whether training started with all its numbers at zero, or next to it.
        spare: Of one without a gradient, or with a gradient of exact zeros: why that may be meant, such as ``a part of BertModel
            (from transformers) that this task does not use``; empty if no reason is known.
        decay: The share of itself that decoupled weight decay (AdamW's, SGD's) takes of it at each step; 0 without.
        l2: The weight decay that an optimizer adds to its gradient, as Adam does; 0 without.
    """

    elements: int
    dimensions: int
    trains: bool
    has_gradient: bool
    optimizers: tuple[str, ...] = ()
    steps: int = 0
    lr: float | None = None
    lr_peak: float | None = None
    decay: float = 0.0
    unzeroed_steps: int = 0
    starts_at_zero: bool = False
    spare: str = ""
    l2: float = 0.0


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Targets that a cross entropy ignores, in the sampled batches.

    Attributes:
        batches: Sampled batches (or calls of a loss module) with integer targets.
        ignored_batches: Those of them all of whose targets were ``ignore_index``.
        targets: All targets.
        ignored: Those of them that were ``ignore_index``.
    """

    batches: int
    ignored_batches: int
    targets: int
    ignored: int


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How often batches were the same, by a hash of a sample of their numbers; batches of one number only are not compared.

    Attributes:
        compared: Sampled batches that were compared with the batch after them.
        repeated: Those of them whose next batch was the same, or had the same numbers in a tensor that otherwise changes.
        ranks: How many ranks get data of their own; 1 where all ranks share a batch.
        rank_batches: Sampled batches that were compared over the ranks, of the window's last 16.
        same_on_ranks: Those of them that were the same on all ranks.
        different: How many of these differ from one another.
    """

    compared: int = 0
    repeated: int = 0
    ranks: int = 1
    rank_batches: int = 0
    same_on_ranks: int = 0
    different: int = 0


@dataclass(frozen=True, slots=True)
class UnregisteredModules:
    """Modules or tensors in a plain list or dictionary, or parameters created in ``forward``, which the model does not know.

    Attributes:
        modules: How many modules; 0 where it holds tensors that require a gradient.
        elements: Numbers in those parameters and tensors that require a gradient.
        reached: Whether a gradient arrived at any of these, on any rank.
        training: Whether any of the modules is in training mode.
        optimized: Whether an optimizer holds any of the parameters.
        held: Whether an attribute of the model holds them; if not, they were created for the first loss, and gone after it.
    """

    modules: int
    elements: int
    reached: bool = False
    training: bool = True
    optimized: bool = False
    held: bool = True


@dataclass(frozen=True, slots=True)
class VectorDecay:
    """Weight decay on parameters of one dimension or less: biases, and the scales of normalisation layers.

    Attributes:
        weight_decay: The largest that is set for any of them.
        parameters: How many have it.
    """

    weight_decay: float
    parameters: int


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """What is out of the ordinary in the modules' modes and settings and in the batches of a window.

    Attributes:
        eval_modes: Each dropout and batch norm that was in eval mode in every sampled batch, to the number of modules in eval mode
            from it outwards: 1 where the module around it is in training mode.
        unestimated: Those of them that are batch norms whose running statistics are as they were made, 0 and 1: no data have been
            seen.
        constant_weights: Linear or convolution layer with two outputs or more to the one number, other than 0, that all its weights
            were when training started; so are matrices of recurrent layers (``….weight_hh_l0``) and the time-step biases of
            state-space layers (``….dt_bias``), by their own names.
        one_sign_weights: Linear or convolution layer to the mean of its weights when training started, where all of them were above
            0, or all below.
        untrained: Frozen linear or convolution layers that are as they were initialised.
        updating: Each frozen batch norm in training mode, to how far its running statistics have moved since training started, in
            the standard deviations that they had then (2-Wasserstein distance, root mean square over the channels). One without
            parameters is frozen if all parameters of the part around it are. Not where they were never trained.
        values_per_channel: Values from which a batch norm in training mode computed each mean, where those are fewer than 16.
        settings: Module to its settings that are unusual: ``p`` of a dropout or a stochastic depth above 0.5, ``eps`` of a norm
            above 0.01, ``momentum`` 0 of a batch norm that has not been trained, ``frozen_stages`` of a module all of whose
            parameters train.
        unregistered: Attribute (``net.blocks``) to the modules or tensors it holds that are registered nowhere; module to the
            parameters behind its output that each step creates again.
        vector_decay: Optimizer to its weight decay on biases and norms; only optimizers that hold weights too.
        nonfinite_weights: Parameters that held NaN or infinite values when training started, to what is known of them.
        foreign: What optimizers hold that requires a gradient and is no parameter of the model, by its name
            (``0-Adam.group0.4``), to its shape.
        labels: Targets that a cross entropy ignores; None where no integer targets were found.
        batches: How often batches were the same.
    """

    eval_modes: dict[str, int] = field(default_factory=dict)
    unestimated: tuple[str, ...] = ()
    constant_weights: dict[str, float] = field(default_factory=dict)
    one_sign_weights: dict[str, float] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    updating: dict[str, float] = field(default_factory=dict)
    values_per_channel: dict[str, float] = field(default_factory=dict)
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    unregistered: dict[str, UnregisteredModules] = field(default_factory=dict)
    vector_decay: dict[str, VectorDecay] = field(default_factory=dict)
    nonfinite_weights: dict[str, NonfiniteWeight] = field(default_factory=dict)
    foreign: dict[str, tuple[int, ...]] = field(default_factory=dict)
    labels: LabelCounts | None = None
    batches: BatchCounts = BatchCounts()

"""The kinds of alerts on what modules put out, and on what is inside modern models."""

from __future__ import annotations

from lightning_hooks.reports.kind import Kind

OF_FEATURES: dict[str, Kind] = {
    "dead": Kind(
        "Dead units",
        (
            "Try a lower learning rate or a warm-up",
            "Check the layer's bias and initialisation",
            "Use a LeakyReLU or GELU in its place",
        ),
        "share",
    ),
    "saturated": Kind(
        "Saturated activations",
        (
            "Normalise the inputs",
            "Put a normalisation layer before it",
            "Try a smaller initialisation",
        ),
        "share",
    ),
    "constant": Kind(
        "Outputs that do not vary",
        ("Check the data that reaches it and the layers before it",),
    ),
    "nonfinite": Kind(
        "NaN or infinite values",
        (
            "Check the inputs of that batch and this module's operation",
            "Try a lower learning rate or gradient clipping",
        ),
    ),
    "silent": Kind(
        "Modules that were not measured",
        (
            "Remove it if it is not used",
            "Call it as module(x) instead of module.forward(x)",
            "Call torch.compiler.reset() before fit if the model was compiled earlier",
        ),
        "nothing",
    ),
    "poor_init": Kind(
        "Initial weights unlike those of similar layers",
        ("Use the initialisation of the other layers",),
    ),
    "shared": Kind(
        "One layer used in several places",
        (
            "Make each its own: [make_layer() for _ in range(n)]",
            "Where weights are shared on purpose, mute this with rules=['-shared']",
        ),
        "nothing",
    ),
    "validation_shift": Kind(
        "Validation data unlike the training data",
        ("Use the same transforms and units for training and validation",),
    ),
    "attention_logits": Kind(
        "Very large attention logits",
        (
            "Normalise queries and keys (QK-norm), or clip their weights (QK-clip)",
            "Try a lower learning rate or a longer warm-up",
            "Divide the logits by the root of a head's width",
        ),
    ),
    "attention_collapse": Kind(
        "Attention to a single key",
        (
            "Normalise queries and keys (QK-norm)",
            "Try a lower learning rate, a longer warm-up or a smaller initialisation",
            "Divide the logits by the root of a head's width",
        ),
        "share",
    ),
    "attention_uniform": Kind(
        "Attention to all keys alike",
        (
            "Check that queries and keys differ between positions",
            "Check the gradients of the query and key weights",
        ),
        "share",
    ),
    "masked_rows": Kind(
        "Queries that may attend to no key",
        (
            "Check what True means: nn.MultiheadAttention hides such a key, scaled_dot_product_attention shows it",
            "Leave out samples that are all padding",
        ),
        "share",
    ),
    "activation_outliers": Kind(
        "A few channels far larger than the others",
        (
            "Look at the bias and the normalisation weight of that channel",
            "In float16, train in bfloat16",
            "Before quantising, give such channels a scale of their own",
        ),
    ),
    "residual_growth": Kind(
        "A residual stream that grows from block to block",
        (
            "Normalise what each branch reads (pre-norm)",
            "Start each branch's last layer smaller, by the root of the depth",
            "In float16, train in bfloat16",
        ),
    ),
}
"""A part of :data:`~lightning_hooks.reports.kinds.KINDS`."""

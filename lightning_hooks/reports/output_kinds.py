"""The kinds of alerts on what a model puts out, and on what its losses are given."""

from __future__ import annotations

from lightning_hooks.reports.kind import Kind

OF_OUTPUTS: dict[str, Kind] = {
    "id_out_of_range": Kind(
        "An id beyond the table of an embedding",
        (
            "Make the table as large as the vocabulary (num_embeddings, resize_token_embeddings of transformers)",
            "Encode the data with the tokenizer that the table was made for",
            "Replace padding such as -100 before the model is called",
        ),
    ),
    "representation_collapse": Kind(
        "Outputs that are the same for every sample",
        (
            "Add what makes samples differ: negatives, a stop-gradient and a predictor, a variance term",
            "Check that the part reads its input, and lower the weight of a divergence or penalty",
            "Try a lower learning rate",
        ),
    ),
    "output_range": Kind(
        "A loss given what it does not expect",
        (
            "Give cross_entropy the output of the last linear layer, without an activation",
            "Give mse_loss and its like outputs and targets of the same shape",
            "Give nll_loss the log_softmax of the logits, or log(p) of probabilities",
        ),
    ),
    "softmax_dim": Kind(
        "A softmax along the wrong dimension",
        (
            "Pass dim=-1 for classes in the last dimension and for attention scores of shape (…, queries, keys)",
            "Where samples are weighted against one another on purpose, mute this with rules=['-softmax_dim']",
        ),
        "share",
    ),
    "dropout_in_eval": Kind(
        "Dropout that drops in evaluation",
        (
            "Pass training=self.training to F.dropout, or use nn.Dropout",
            "Pass dropout_p=self.p if self.training else 0.0 to scaled_dot_product_attention",
            "Where it is on purpose (Monte Carlo dropout), mute this with rules=['-dropout_in_eval']",
        ),
        "share",
    ),
    "precision_not_applied": Kind(
        "Half precision that is not applied",
        (
            "Remove autocast(enabled=False) and .float() around the model",
            "Call the model within training_step, or under trainer.precision_plugin.forward_context()",
        ),
        "share",
    ),
}
"""A part of :data:`~lightning_hooks.reports.kinds.KINDS`."""

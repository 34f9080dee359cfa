"""What is planted in the zoo's faults and is wrong in the bugs of others: the causes that name it, and the words that repair it."""

from __future__ import annotations

RATE = ("rate_too_high", "group_too_fast")
CAUSES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("large_queries_and_keys", "attention_saturated", "init_times_10", "init_divided_by_10"), ("initial_scale",)),
    **dict.fromkeys(("zero_init", "lora_of_zeros"), ("constant_weights",)),
    **dict.fromkeys(("negative_bias", "gan_dead_generator", "router_starts_collapsed", "experts_out_of_reach"), ("offset_bias",)),
    "one_bias_of_20000": ("offset_bias",),
    **dict.fromkeys(("lr_times_1000_sgd", "lr_times_1000_adam", "dying_relu", "post_norm_without_warm_up"), ("rate_too_high",)),
    **dict.fromkeys(
        ("double_lr_group", "logits_grow", "codebook_collapse", "generator_collapse", "discriminator_too_strong"), RATE
    ),
    "lr_divided_by_1e6": ("rate_too_low",),
    **dict.fromkeys(("bfloat16_small_steps", "bfloat16_small_gradients"), ("half_weights", "rate_too_low")),
    **dict.fromkeys(("lr_jolt", "lr_grows", "lr_below_zero", "wrong_entry_in_schedule"), ("wrong_schedule", "rate_too_high")),
    **dict.fromkeys(("scheduler_at_every_batch", "cosine_is_over", "warm_up_too_long"), ("wrong_schedule",)),
    **dict.fromkeys(
        ("weight_decay_too_large", "beta2_too_small", "betas_in_wrong_order", "momentum_next_to_one"), ("unusual_setting",)
    ),
    **dict.fromkeys(("layernorm_eps", "batchnorm_momentum_zero", "dropout_keeps_nothing"), ("module_setting",)),
    **dict.fromkeys(("unnormalised_tanh", "vae_exp_overflow", "exp_in_the_loss"), ("large_inputs",)),
    "deep_sigmoid": ("squashing_chain",),
    "exploding_rnn": ("stretching_recurrence", "initial_scale"),
    **dict.fromkeys(("nan_in_one_batch",), ("nonfinite_data",)),
    **dict.fromkeys(("log_of_zero", "sqrt_of_zero", "layernorm_without_eps", "empty_mask"), ("nonfinite_operation",)),
    **dict.fromkeys(("inverted_padding_mask", "inverted_written_mask"), ("nonfinite_operation", "wrong_mask")),
    "averaged_probabilities": ("no_logits",),
    "gan_log_of_zero": ("nonfinite_operation", "group_too_fast"),  # both are planted
    "fp16_overflow": ("half_overflow", "initial_scale"),
    **dict.fromkeys(("huge_batch", "corrupt_targets"), ("bad_batch",)),
    **dict.fromkeys(("loss_summed", "accumulation_not_divided"), ("loss_summed", "accumulation_summed")),
    **dict.fromkeys(("loss_divided_too_often", "gradients_divided_in_a_hook"), ("loss_divided",)),
    **dict.fromkeys(
        ("softmax_before_cross_entropy", "rectified_logits", "bounded_logits"), ("activation_before_loss", "no_logits")
    ),
    **dict.fromkeys(("not_in_optimizer", "frozen_by_mistake"), ("in_no_optimizer",)),
    **dict.fromkeys(("clip_threshold_tiny",), ("clip_too_low",)),
    "clip_in_training_step": ("clips_in_vain",),
    "no_zero_grad": ("never_zeroed",),
    "shared_weights": ("one_layer_shared",),
    **dict.fromkeys(("blocks_in_a_list", "heads_in_a_dictionary"), ("not_registered",)),
    **dict.fromkeys(("body_in_eval_mode", "never_back_in_train_mode"), ("left_in_eval_mode",)),
    **dict.fromkeys(("softmax_over_batch", "softmax_over_queries"), ("wrong_dimension",)),
    **dict.fromkeys(("detach_in_the_middle", "unused_branch", "gan_generator_detached", "positions_not_added"), ("cut_path",)),
    **dict.fromkeys(("black_images", "same_image", "constant_labels"), ("constant_data",)),
    **dict.fromkeys(("labels_masked_in_step", "labels_masked", "ignored_class"), ("labels_lost",)),
    **dict.fromkeys(("workers_repeat", "buffer_not_filled"), ("same_batches",)),
    **dict.fromkeys(("encoder_written_back", "stem_written_back"), ("written_back",)),
    **dict.fromkeys(("frozen_body_follows", "frozen_resnet_follows"), ("follows_data",)),
    "validation_not_normalised": ("other_units",),
    "dropout_everywhere": ("drops_in_eval",),
    "autocast_off": ("not_cast",),
    # The bugs of others.
    **dict.fromkeys(("softmax_before_loss", "sigmoid_before_loss"), ("activation_before_loss",)),
    **dict.fromkeys(("outputs_without_graph", "head_without_graph"), ("cut_path",)),
    **dict.fromkeys(("one_cycle_per_epoch", "schedule_per_batch"), ("wrong_schedule",)),
    **dict.fromkeys(("optimizer_of_replaced_layers", "group_not_added"), ("in_no_optimizer",)),
    **dict.fromkeys(("accumulation_thrown_away", "zero_grad_forgotten"), ("never_zeroed",)),
    **dict.fromkeys(("eval_mode_after_validation", "spectral_norm_in_eval_mode"), ("left_in_eval_mode",)),
    **dict.fromkeys(
        ("functional_dropout_in_evaluation", "dropout_made_in_forward", "attention_drops_in_evaluation"), ("drops_in_eval",)
    ),
    "layers_in_a_list": ("not_registered",),
    "autocast_in_part": ("not_cast",),
}
"""The hypotheses that are right, by family; a family that is not here has a cause that no hypothesis is about."""

REPAIRS: dict[str, str] = {
    **dict.fromkeys(("black_images", "same_image"), "samples of a batch"),
    "constant_labels": "targets of a batch",
    **dict.fromkeys(("labels_masked_in_step", "labels_masked", "ignored_class"), "labels"),
    **dict.fromkeys(("workers_repeat", "buffer_not_filled"), "samples"),
    **dict.fromkeys(("encoder_written_back", "stem_written_back"), "what writes"),
    "validation_not_normalised": "transforms of validation",
    "dropout_everywhere": "self.training",
    "lr_grows": "what raises",
    "no_zero_grad": "zero_grad",
    "clip_in_training_step": "gradient_clip_val",
    "shared_weights": "own",
    "blocks_in_a_list": "ModuleList",
    "heads_in_a_dictionary": "ModuleDict",
    "body_in_eval_mode": r"train\(",
    "never_back_in_train_mode": r"train\(",
    "softmax_over_batch": "dim=-1",
    "softmax_over_queries": "dim=-1",
    "detach_in_the_middle": "detach",
    "gan_generator_detached": "detach",
    "unused_branch": "forward",
    "positions_not_added": "forward",
    "log_of_zero": "log",
    "gan_log_of_zero": "log",
    "sqrt_of_zero": "sqrt",
    "layernorm_without_eps": "eps",
    "empty_mask": "div|mean",
    "inverted_padding_mask": "mask",
    "exp_in_the_loss": "exp",
    "lr_jolt": "what raises",
    "inverted_written_mask": "mask",
    "rectified_logits": "relu|last linear layer",
    "bounded_logits": "tanh|last linear layer",
    "huge_batch": "samples of batch",
    "corrupt_targets": "samples of batch",
    # The bugs of others.
    "sigmoid_before_loss": "sigmoid",
    **dict.fromkeys(("outputs_without_graph", "head_without_graph"), "detach"),
    **dict.fromkeys(("accumulation_thrown_away", "zero_grad_forgotten"), "zero_grad"),
    **dict.fromkeys(("eval_mode_after_validation", "spectral_norm_in_eval_mode"), r"train\("),
    **dict.fromkeys(
        ("functional_dropout_in_evaluation", "dropout_made_in_forward", "attention_drops_in_evaluation"), "self.training"
    ),
    "layers_in_a_list": "ModuleList",
    "autocast_in_part": "autocast",
}
"""What the text of a remedy in code must name to be the repair, by family: the training is then the one without the fault."""

"""What the pages about kinds of alerts say in words. `{Dead.threshold}` stands for the default of that field of that rule."""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "dead": "Units of a rectifier (`nn.ReLU`, `nn.ReLU6`) gave 0 for every sampled input of the epoch. They pass no gradient, so they "
    "cannot recover by themselves.",
    "saturated": "Most values of a bounded activation (sigmoid, tanh, softmax, ReLU6, hardtanh and the flat tail of GELU, SiLU, ELU, "
    "softplus) are at a bound, where the slope is almost zero. Little gradient passes.",
    "constant": "A module's output does not vary, or all samples of a batch are equal or next to 0, or all samples have the same target. "
    "The model cannot learn anything about its input.",
    "nonfinite": "A module's output, the gradient at a module or the gradient of a parameter holds NaN or infinite values. One optimizer "
    "step with such a gradient ruins the weights.",
    "silent": "A chosen module was never called in a sampled training batch, or it returned no floating-point tensor. Nothing is known "
    "about it: it is neither zero nor dead.",
    "poor_init": "The initial weights of one layer are much larger or much smaller than those of the other layers of the same role (the "
    "same type and last part of the name), and the signal through it grows or shrinks by the same factor; or all initial weights of "
    "several layers are one number, so that their units are the same and stay the same, or all of one sign, so that their outputs hardly "
    "depend on the input.",
    "shared": "One parent holds the same module under several names, as `[layer] * 4` does. The layers share their weights.",
    "validation_shift": "The model's input has a different size in validation than in training. Usually one of the two is not normalised.",
    "attention_logits": "The largest logit of an attention layer, scale times query times key, is too large for half precision or grows "
    "fast. This comes before divergence in large transformers.",
    "attention_collapse": "Most heads of an attention layer attend to a single key, which is not the first one. Their softmax is "
    "saturated, and hardly any gradient reaches queries and keys.",
    "attention_uniform": "All heads of an attention layer still attend to all keys alike after 1000 steps. The layer only takes a mean.",
    "masked_rows": "Some queries of an attention layer may attend to no key at all. Their output is NaN, zero or the mean of everything, "
    "depending on how attention is computed.",
    "representation_collapse": "The output of the model, or of one of its parts, has become the same for all samples of a batch, up to its "
    "size. It differed when training started. Self-supervised and metric learning without negatives end so, and generators that have one "
    "image for every noise.",
    "output_range": "`cross_entropy` is given numbers that are no logits: probabilities, what a ReLU or a tanh leaves. It applies a softmax "
    "itself and expects any real numbers. Or `nll_loss` is given numbers that are no logarithms of probabilities, or `mse_loss`, `l1_loss`, "
    "`smooth_l1_loss` or `huber_loss` compares every output with every target, because their shapes differ, or has targets that the sigmoid, "
    "softmax, tanh or ReLU before it cannot put out. Or `binary_cross_entropy` has targets below 0 or above 1, or `kl_div` is given "
    "probabilities instead of their logarithms.",
    "id_out_of_range": "Training ended because an embedding was given an id that it has no row for. The alert names the id, the table and where in "
    "the batch the id is. It is read from the exception on the CPU, in training of one process; on CUDA the failed lookup has ended the "
    "device's context, and nothing can be read: train on the CPU for a moment to see it.",
    "softmax_dim": "A softmax or log_softmax normalises along the wrong dimension: over the samples of the batch, or over the queries of an attention "
    "whose mask is made for the keys.",
    "dropout_in_eval": "A call of `dropout`, or of `scaled_dot_product_attention` with a `dropout_p`, drops something though the module that "
    "makes it is in eval mode. Validation is noisy, and so is what the model predicts later.",
    "precision_not_applied": "The Trainer's precision is half precision, and most linear and convolution layers compute in float32 all the "
    "same. Training takes the time and memory of float32.",
    "activation_outliers": "One channel of the residual stream (what a block hands on to the next) is far larger than the others. Trained "
    "language models have such channels (Sun et al. 2024), so it is an info; in float16 they may overflow.",
    "residual_growth": "The residual stream is far larger behind a late block than behind the first one: blocks multiply what they are "
    "given, or each block's input is about twice that of the one before. Late blocks then hardly change the stream, and in float16 it may overflow.",
    "vanishing": "The gradient becomes very small on its way back to the first layers. These layers hardly learn.",
    "exploding": "The gradient grows on its way back, is huge everywhere, or has grown since training began. Steps become wild and weights "
    "may end as NaN.",
    "zero": "A parameter's gradient arrives and is exactly 0. The parameter is connected to the loss but does not learn.",
    "missing": "A parameter requires a gradient but its `.grad` is None at every measured step. The loss does not depend on it.",
    "update_too_small": "The optimizer's steps change none of its weights by a noticeable share of their size, although there is a "
    "gradient.",
    "not_updated": "A weight, or all weights of a module, did not change by one bit, while other weights moved.",
    "updates_lost": "A weight is stored in half precision, and almost none of its elements change at a step: each change is smaller than "
    "the distance to the next number that bfloat16 or float16 can hold. The weight stands still although the optimizer works.",
    "update_spike": "One step changed a weight far more than the steps before it did, and its learning rate had not risen. What the model "
    "has learned may be lost in that step.",
    "weights_growing": "The norm of a weight doubled within one window, faster than in the window before, or keeps growing by the same "
    "factor from window to window while the loss rises. Training that goes on like this diverges.",
    "router_collapse": "A router of a mixture of experts sends nearly all tokens to as few experts as it can, or a vector quantiser "
    "chooses the same few codes for everything. The other experts and codes do not train, and the model has the capacity of a much "
    "smaller one.",
    "dead_experts": "Some experts of a mixture get no tokens, or next to none, batch after batch. They do not train, and since they do "
    "not train the router has no reason to choose them.",
    "second_moment_stale": "Adam divides the gradient by the root of its second moment plus eps. Most second moments are below eps², so "
    "eps alone divides: steps shrink with the gradient, and the learning rate no longer says how large they are.",
    "lr_zero": "The learning rate is zero or almost zero while much of the training is still to come, or a warm-up has hardly begun when "
    "half of it is over. The remaining steps change nothing.",
    "optimizer_settings": "A setting of an optimizer is far outside of what is usual: a large eps, beta1 above beta2, a momentum next to "
    "1, or a weight decay that Adam adds to the gradient and that outweighs it.",
    "update_too_large": "One step changes a weight by a large share of its size, or weight decay removes too much of every weight at each "
    "step. What the model learned is overwritten.",
    "not_optimized": "A parameter gets a gradient and no optimizer holds it, or an optimizer holds frozen parameters only, or there is no "
    "optimizer; or the last layer is frozen as it was initialised, while layers before it train.",
    "double_softmax": "The loss applies a softmax or sigmoid to the output of a softmax or sigmoid. `cross_entropy` and "
    "`binary_cross_entropy_with_logits` expect logits. Gradients are small and the loss cannot reach 0.",
    "eval_mode": "Dropout, batch norm or spectral norm is in eval mode while the part of the model around it trains. Dropout drops "
    "nothing, batch norm uses its running statistics and does not update them, and spectral norm does not follow its weight.",
    "frozen_statistics": "A part of the model is frozen, but its batch norms are in training mode: their running statistics follow the "
    "new data, and validation uses them with the old weights.",
    "settings": "A module or an optimizer has a setting that hardly anybody wants: a batch norm over very few values or with momentum 0, "
    "a dropout that drops nearly everything, a norm with a large eps, stages named as frozen that train, weight decay on "
    "biases and norms.",
    "unregistered": "The loss depends on modules in a plain Python list, tuple or dictionary, or on a tensor with `requires_grad` that is no "
    "parameter. The model does not know them: no optimizer gets them from `parameters()`, and no checkpoint holds them. Or it depends on "
    "parameters that each step creates again, as a layer in `forward` is: they never learn.",
    "labels_ignored": "All targets of a batch are cross entropy's `ignore_index`. Its mean is over nothing then, which is NaN.",
    "batch_repeated": "A training batch, or one of its tensors that otherwise changes, is the same as in the batch after it, to the bit, "
    "again and again within an epoch.",
    "ranks_same_batch": "All ranks of a distributed training get the same batches. Their gradients are the same, so more ranks do not "
    "help.",
    "loss_nonfinite": "The loss of a training batch is NaN or infinite. Every batch is looked at, also those that are not sampled, so the "
    "batch and the step are exact. If a layer's output was not finite before, that is the cause.",
    "loss_spike": "The loss leaps far above that of the batches before and stays there for several batches. What the model learned is "
    "partly lost.",
    "loss_diverging": "The loss had fallen and rises again, against what the optimizer minimises; or it is a distance of outputs from "
    "targets, such as a cross entropy, and is made larger, by `maximize=True` or a minus before it.",
    "loss_plateau": "The loss stays near the value that it began with. The model hardly learns.",
    "overfitting": "The validation loss rises from validation to validation while the training loss falls. The metric is one that you log "
    "with `val` and `loss` in its name.",
    "ranks_differ": "Under DDP a parameter, or its gradient after the reduction, is not the same on every rank. Each rank trains a model "
    "of its own, and what is saved is that of rank 0. Local SGD, shards and parameters that DDP ignores are not compared. It "
    "takes two processes, so the fault zoo, whose trainings have one, has no such fault.",
    "always_clipped": "Clipping reduces nearly every step. The clipping threshold, not the learning rate, sets the step size.",
    "clip_ineffective": "A step was taken with a larger norm than the configured limit, or gradients were clipped when the step was "
    "already taken.",
    "steps_skipped": "The loss scaler of 16-bit precision skipped many optimizer steps because gradients overflowed. The model learns from "
    "fewer batches than it gets.",
    "spike": "The gradient of one step is far larger than that of all steps before.",
    "not_zeroed": "Gradients were not set to zero between two steps, so that each step follows the sum of all gradients so far; or they "
    "were set to zero before each batch of an accumulation, so that all but the last are thrown away.",
}

FORMULAS: dict[str, str] = {
    "dead": "dead_fraction = units that are 0 in every sampled batch of the epoch / units of the layer\n\n"
    "alert if dead_fraction > {Dead.threshold}\n"
    "      or dead_fraction > {Dead.dying} and dead_fraction - dead_fraction in the first epoch > {Dead.growth},\n"
    "from {Dead.min_samples} values of each unit on, unless all units are dead;\n"
    "of fewer than {Dead.min_units} units from {Dead.of_few} on",
    "saturated": "saturated_fraction = values within 1 % of the activation's range from a bound / values\n\n"
    "alert if saturated_fraction > {Saturated.threshold}; > {Saturated.learned} if it was below {Saturated.threshold} in the first window",
    "constant": "of a module:   alert if std(output) / rms(output) <= {Constant.threshold}\n"
    "of a batch:    alert if all samples are equal to the last bit; of token ids and masks, in all of them\n"
    "               alert if the input is images, and all of its numbers are from 0 to {TinyInput.largest}\n"
    "of the targets: agreement = |gradient of the last bias| / |the same, if all samples pulled in one direction|\n"
    "               alert if agreement > {ConstantTargets.threshold}, in batches of at least {ConstantTargets.min_samples} samples\n"
    "               alert if what mse_loss, l1_loss, smooth_l1_loss or huber_loss is given is equal to the last bit for 8 samples of\n"
    "               a batch, and for the batch before, in all of at least {SameTargets.min_calls} sampled calls, and the batch's samples differ",
    "nonfinite": "alert if nonfinite_fraction > {NonfiniteFeatures.threshold}    (outputs, and gradients at modules)\n"
    "alert if a measured step of a parameter had a gradient that is not finite\n"
    "alert if any optimizer step, sampled or not, was taken with such a gradient",
    "id_out_of_range": "alert if training ended in a lookup (F.embedding, F.embedding_bag) whose id is < 0 or >= rows of the table",
    "silent": "alert if calls = 0, or no output holds a floating-point tensor",
    "poor_init": "gain = rms(weight) * sqrt(fan_in)\nratio = gain / median gain of the layers of the same role\n\n"
    "alert if max(ratio, 1 / ratio) > {PoorInit.factor}, in a role of at least {PoorInit.min_layers} layers,\n"
    "      unless another layer's gain is within a factor of {PoorInit.near}, or the gain is within {PoorInit.textbook},\n"
    "      or rms(weight) is within {PoorInit.same} of the median of all layers, that of most is, and it is <= {PoorInit.small}\n"
    "or if the weights of at least {ConstantWeights.layers} linear or convolution layers are one number each, and not 0,\n"
    "or the time-step bias of a state-space layer (dt_bias) is; matrices of recurrent layers count as layers\n"
    "or if the weights of at least {OneSignWeights.layers} linear or convolution layers are all above 0, or all below",
    "shared": "alert if one module object is registered under two or more names of one parent",
    "validation_shift": "ratio = rms(model input in validation) / rms(model input in training)\n\n"
    "alert if max(ratio, 1 / ratio) > {ValidationShift.factor}",
    "attention_logits": "alert if max_logit > {AttentionLogits.threshold} in bfloat16 or float16\n"
    "      or end_max_logit > {AttentionLogits.growth} * max(begin_max_logit, 1), and > {AttentionLogits.least}\n\n"
    "begin_max_logit and end_max_logit are those of the first and the last sampled call of the window.",
    "attention_collapse": "entropy = mean over query rows of -sum(p * log(p)) / log(keys that the row may attend to)\n\n"
    "alert if entropy < {AttentionCollapse.threshold} and first_token_share < {AttentionCollapse.sink}\n"
    "      in more than {AttentionCollapse.share} of the heads, and max_logit > {AttentionCollapse.least};\n"
    "      entropy < {AttentionCollapse.everywhere} is enough where that is so in all attention layers, two or more",
    "attention_uniform": "alert if entropy > {AttentionUniform.threshold} in every head, after {AttentionUniform.min_steps} optimizer "
    "steps",
    "masked_rows": "alert if a query row may attend to no key\n"
    "critical if such a row gives NaN\n"
    "a warning if the share of samples none of whose rows has a key > {MaskedRows.threshold}",
    "representation_collapse": "y = outputs of up to 8 samples, each divided by its root mean square; up to 128 elements of each\n"
    "ratio = variance of y over the samples / variance of y within a sample, each a mean\n\n"
    "alert if ratio <= {RepresentationCollapse.threshold} at the end of the model or of a part of it, in two "
    "reports in a row,\n"
    "      or ratio <= {RepresentationCollapse.at_once} in each of {RepresentationCollapse.batches} and more batches of one report,\n"
    "      and ratio >= {RepresentationCollapse.started} in a batch before\n"
    "or if all rows that a cross entropy is given are the same but for roundings, in all of at least {SameOutputs.calls} sampled calls;\n"
    "   of the losses between numbers: all samples of its input, of two numbers at least, while the targets differ",
    "output_range": "alert if {OutputRange.share} of the rows have no number below 0 and the sum 1    (probabilities)\n"
    "      or min(logits) = 0 and more than {OutputRange.zeros} of the logits are 0    (a rectifier)\n"
    "      or min(logits) and max(logits) are within {OutputRange.bound} of -1 and 1 and not beyond, of more than 2 classes    (a tanh)\n"
    "info if {OutputRange.share} of the rows have logsumexp(row) = 0    (logarithms of probabilities)\n\n"
    "nll_loss: alert if {OutputRange.share} of the rows are probabilities\n"
    "                or {OutputRange.mixed} of the rows have numbers below 0 and above it, and none has logsumexp(row) = 0\n\n"
    "judged from {OutputRange.min_logits} logits on\n\n"
    "mse_loss, l1_loss, smooth_l1_loss, huber_loss, unless reduction = 'none':\n"
    "          alert if the shapes of input and target differ, and both are expanded\n"
    "          or more than {UnreachableTargets.share} of the targets are outside of the values of the sigmoid, softmax, tanh or ReLU "
    "before it\n"
    "binary_cross_entropy, with logits or not: alert if more than {UnreachableTargets.share} of the targets are outside of 0 to 1\n"
    "kl_div: alert if more than {UnreachableTargets.share} of the numbers of its input are above 0",
    "softmax_dim": "alert if each call is along dimension 0, whose size is that of the batch, and each sample has a target of its own\n"
    "      or a line along the dimension is masked as a whole, and none along the last one\n"
    "      or of a square matrix line 0 of the last dimension is whole, and in line 0 of this one all but the first number is masked\n"
    "      or what nll_loss is given has logsumexp = 0 along another dimension than the second, and not along that one",
    "dropout_in_eval": "alert if p > 0 and training=True (dropout) or dropout_p > 0 (attention), and module.training is False,\n"
    "      in a sampled training batch, or in the first batch of a validation",
    "precision_not_applied": "share = numbers in the weights of the linear and convolution layers with outputs in float32\n"
    "        / those of all that were called\n\n"
    "alert if share > {PrecisionNotApplied.threshold} under bf16-mixed, 16-mixed, bf16-true or 16-true",
    "activation_outliers": "channel_ratio = rms of the largest channel / rms of the median channel, of a block's output\n\n"
    "alert if channel_ratio > {ActivationOutliers.threshold}",
    "residual_growth": "growth = rms of a block's output / rms of the first block's output\n\n"
    "alert if growth > {ResidualGrowth.threshold}, in a stack of at least {ResidualGrowth.min_blocks} blocks\n"
    "or if the rms of each block's input is {ResidualDoubling.factor} times that of the one before (median), and the last one's\n"
    "   {ResidualDoubling.threshold} times the first one's, in at least {ResidualDoubling.min_blocks} blocks",
    "vanishing": "g = rms of the gradient at the module's output;  n = its norm;  later = modules with parameters nearer to the loss\n\n"
    "alert if g < {Vanishing.relative} * max(g of later modules), and n < {Vanishing.relative} * max(n of later modules),\n"
    "         here and at every module before\n"
    "      or g < {Vanishing.absolute}, here and at every module before\n"
    "not where g > {Vanishing.alike} * max(g of later modules of the same role), nor where gradients explode or are not finite,\n"
    "nor where the module's weight moves by at least {Vanishing.learns} of its size at each step of an optimizer like SGD",
    "exploding": "g = rms of the gradient at the module's output;  n = its norm;  near = max(g) over the last eighth of the modules\n\n"
    "alert if g > {Exploding.relative} * near, and at least a hundredth of that at every module before\n"
    "      or g > {Exploding.absolute}, also of a parameter's gradient\n"
    "      or n behind a module > {Stretching.threshold} * max(n at later modules)\n"
    "      or rms of a parameter's gradient > {Stretching.inside} * g of its module\n"
    "      or a step's total norm > {Diverging.threshold} * the largest of the first eight steps\n"
    "Where all optimizers are free of the gradient's scale (Adam) and the loss falls, the second line does not apply and\n"
    "the third is {Stretching.scale_free} times less strict.",
    "zero": "zero_fraction = elements of the gradient that are exactly 0, over all measured steps\n\n"
    "alert if zero_fraction >= {Zero.threshold}\n"
    "an info for one of several experts, for a bias where the weight of its module has a gradient, and in a library's model,\n"
    "unless more than {Zero.part} of what trains has none; and where no parameter has a gradient and the loss was 0 in as many\n"
    "batches as were measured, and not in all",
    "missing": "alert if .grad is None at every measured step of the epoch",
    "update_too_small": "update_ratio = |update| / |weight|, mean over the measured steps;\n"
    "               of a weight that started next to 0, |update| / the size of the optimizer's largest weight\n\n"
    "alert if update_ratio < {UpdateTooSmall.threshold} for every weight of an optimizer\n"
    "      or < {UpdateTooSmall.slow}, and < {UpdateTooSmall.planned} / planned steps of the whole training, of {UpdateTooSmall.min_planned} or more,\n"
    "         unless the last losses of the window are below {UpdateTooSmall.falls} of the first\n"
    "not of the first step alone, nor while the learning rate is below {UpdateTooSmall.scheduled} of its peak,\n"
    "nor where the total gradient norm is below {UpdateTooSmall.converged} of the first epoch's",
    "not_updated": "alert if update_ratio = 0 in an epoch with at least {NotUpdated.min_steps} measured steps,\n"
    "      with a gradient and a learning rate above 0, while other weights of the optimizer move\n"
    "or if no optimizer takes a step in {NeverStepped.min_batches} or more batches that have gradients,\n"
    "or one of several has taken none since training started, and gradients reach what it holds",
    "update_too_large": "update_ratio = |update| / |weight|, mean over the measured steps; without the largest of three or more\n"
    "               under an optimizer like SGD where the median of all weights is below {UpdateTooLarge.usual};\n"
    "               of two or more in the first window, if the loss falls in it\n\n"
    "alert if update_ratio > {UpdateTooLarge.threshold} (under LBFGS only where the loss does not fall)\n"
    "      or learning rate * weight_decay (decoupled) >= {UpdateTooLarge.decay}",
    "updates_lost": "lost_fraction = elements with a gradient that keep their value / elements with a gradient, at measured steps\n\n"
    "alert if lost_fraction > {UpdatesLost.threshold}, in at least {UpdatesLost.min_steps} measured steps",
    "update_spike": "usual = the largest of: mean update_ratio of the last windows, mean of this window's other steps\n\n"
    "alert if update_ratio_max > {UpdateSpike.factor} * usual, and > {UpdateSpike.least}\n"
    "      and > {UpdateSpike.peak} * the largest update_ratio_max of the last windows",
    "weights_growing": "alert if weight_norm > {WeightsGrowing.factor} * that of the window before, growing no more slowly than before,\n"
    "      after {WeightsGrowing.min_windows} windows\n"
    "      or weight_norm > {GrowthWithoutGain.factor} * that three windows before, growing no more slowly than before in each,\n"
    "      while the median of the last 32 losses > its lowest + {GrowthWithoutGain.noise} * standard deviation from batch to batch",
    "router_collapse": "effective = exp(entropy of the load of experts) = experts ^ balance, from top_k to the number of experts\n\n"
    "alert if effective - top_k <= {RouterCollapse.threshold} * (experts - top_k)\n"
    "      or of a codebook perplexity - 1 <= {RouterCollapse.codes} * (codes - 1), with at least {RouterCollapse.least_codes} codes\n"
    "in windows in a row of at least {RouterCollapse.min_batches} batches, each of at least {RouterCollapse.min_choices} choices for "
    "each expert\nat an even load",
    "dead_experts": "alert if experts have a load <= {DeadExperts.threshold} / number of experts\n"
    "warning, not info, if they are >= {DeadExperts.share} of all experts\n"
    "in windows in a row of at least {DeadExperts.min_batches} batches ({DeadExperts.of_few} for less than half of the experts),\n"
    "each of at least {DeadExperts.min_choices} choices for each expert at an even load",
    "second_moment_stale": "stale_fraction = second moments below eps² / second moments, where the gradient is not 0\n\n"
    "alert if stale_fraction > {SecondMomentStale.threshold}; {SecondMomentStale.at_once} in the first window",
    "lr_zero": "alert if the learning rate was below 1e-4 of its peak for {LrZero.held} of the planned steps,\n"
    "      with more than {LrZero.left} of them left\n"
    "      or is below {LrZero.initial} * initial_lr (of a cycle: max_lr) after half of them, and still at the foot of its warm-up",
    "optimizer_settings": "alert if eps >= {OptimizerSettings.eps} (Adam-like), or beta1 > beta2, or momentum >= {OptimizerSettings.momentum}\n"
    "or if a weight_decay >= {DecayDominates.decay} is added to the gradient, and weight_decay * rms(weight) / rms(gradient) > "
    "{DecayDominates.factor}, median of the matrices\n"
    "   (torch's Adam, NAdam, RAdam, Adamax, Adagrad, RMSprop), unless training has converged",
    "not_optimized": "alert if requires_grad and in no parameter group of any optimizer\n"
    "or if there are optimizers, and none holds a parameter of the model\n"
    "or if the layer nearest the loss is frozen, others train, and its bias is 0 or weights and bias are uniform in ±1/sqrt(fan_in)",
    "double_softmax": "alert if the input of the loss's softmax or sigmoid is the output of a softmax or sigmoid, in the first batch",
    "eval_mode": "alert if a dropout (or a module with a share to drop), batch norm or spectral norm and the module around it are in eval mode, at the start\n"
    "      and before the backward pass of every sampled batch, or of the last three of a window, and at least {EvalMode.trains} of the elements next to it train and have a gradient\n"
    "or if a batch norm alone is, with a running mean and variance of 0 and 1",
    "frozen_statistics": "d = mean over channels of (change of the running mean / std)² + (std now / std - 1)²,\n"
    "    since training started, in the running std of that time\n\n"
    "alert if no parameter of the module requires a gradient (or next to it, if it has none), and sqrt(d) > {FrozenStatistics.threshold}",
    "settings": "alert if a batch norm in training mode has fewer than {ModuleSettings.values} values per channel and batch\n"
    "      or momentum = 0 in a batch norm that has not been trained before\n"
    "      or the p of a dropout or a stochastic depth >= {ModuleSettings.dropout}\n"
    "      or a norm's eps >= {ModuleSettings.eps}\n"
    "      or frozen_stages >= 1 in a module all of whose parameters require a gradient\n"
    "info if weight_decay > {OptimizerChoices.weight_decay} applies to biases and norms\n"
    "     or two optimizers hold one parameter",
    "unregistered": "alert if a module in a list, tuple, set or dict is not in model.modules(), is in training mode,\n"
    "      and a parameter of it that is not in model.parameters() gets a gradient\n"
    "or if a tensor that is an attribute, or in such a container, requires a gradient, is no parameter, and gets one\n"
    "or if the first loss has a gradient for a parameter that no module and no optimizer holds, and that is gone after the step",
    "labels_ignored": "share = sampled batches all of whose targets are ignore_index / sampled batches;\n"
    "        of a cross_entropy: such calls / its calls\n\n"
    "alert if share > 0; a warning if share >= {LabelsIgnored.threshold} or a loss was not finite",
    "batch_repeated": "share = sampled batches that are the same as the next batch of the epoch / sampled batches\n"
    "        the same: all tensors, or one of floating-point numbers (32 and more different ones) that changes at times\n\n"
    "alert if share >= {BatchRepeated.threshold}, of at least {BatchRepeated.min_batches} sampled batches",
    "ranks_same_batch": "alert if the sampled batches are the same on all ranks, and at least {RanksSameBatch.min_batches} of them differ\n"
    "      from one another",
    "loss_nonfinite": "alert if the loss of any training batch of the window is NaN or infinite\n"
    "an info where a loss scaler skips such steps and the loss is finite again at the end of the window",
    "loss_spike": "mean, std, largest = those of the 128 losses before, after at least 64;  low = the smallest of 3 losses in a row\n\n"
    "alert if low > mean + {LossSpiking.sigmas} * std\n"
    "     and low > mean + {LossSpiking.ratio} * (largest - mean)\n"
    "     and low - mean > {LossSpiking.lost} * (loss at the start - lowest level so far)\n"
    "Not in the first {LossSpiking.settle} batches of an epoch, nor under manual optimisation, where the loss may be anything.",
    "loss_diverging": "now = median of the last 32 losses;  lowest = the lowest median of 32 losses in a row so far\n"
    "lost = (now - lowest) / (loss at the start - lowest)\n\n"
    "alert if lost > {LossDiverging.lost}, and now - lowest > {LossDiverging.noise} * standard deviation from batch to batch,\n"
    "     and the Mann-Kendall score of the last 128 losses > {LossDiverging.trend}, from {LossDiverging.min_steps} losses on,\n"
    "     and that of the last 64 > -1\n"
    "or if the loss is a cross entropy, mse, smooth l1, huber or binary cross entropy, or a mean of them, and all groups of an\n"
    "   optimizer have maximize=True, or it is minus one of these and none has\n"
    "Not under manual optimisation.",
    "loss_plateau": "means = mean loss of this window and the three before, with at least {LossPlateau.min_steps} batches\n\n"
    "alert if max(means) - min(means) < {LossPlateau.threshold} * loss at the start\n"
    "     and the lowest level so far > {LossPlateau.remains} * loss at the start",
    "overfitting": "alert if the validation loss rose {Overfitting.rises} times in a row, by more than {Overfitting.threshold} in all,\n"
    "     while the mean training loss before the validations fell",
    "ranks_differ": "gradients: norm at the last measured step of the window, after the reduction and before clipping\n"
    "weights:   norm and a weighted sum of some elements, at the end of the window\n\n"
    "alert if (largest of any rank - smallest) / largest > {RanksDiffer.threshold}",
    "always_clipped": "rate = clipped steps / steps\n\nalert if rate > {AlwaysClipped.threshold}, in an epoch of at least "
    "{AlwaysClipped.min_steps} steps\n"
    "warning, not info, if the norm before clipping > {AlwaysClipped.growth} * the larger one of the first two epochs,\n"
    "      or norm after / norm before < {AlwaysClipped.left} and the optimizer depends on the gradient's scale (not Adam)",
    "clip_ineffective": "alert if norm after clipping > configured limit * (1 + {ClipIneffective.tolerance})\n"
    "      or gradients change between a step and the next zero_grad, {WastedClip.threshold} times or more in an epoch",
    "steps_skipped": "alert if skipped steps / steps > {StepsSkipped.threshold} and skipped steps >= {StepsSkipped.min_skipped}",
    "spike": "alert if norm > {Spike.ratio} * the largest norm before\n"
    "      and norm > mean + {Spike.sigmas} * standard deviation of the 128 steps before, after at least {Spike.min_steps} steps",
    "not_zeroed": "alert if gradients were not zeroed before {NotZeroed.threshold} or more steps of the epoch\n"
    "or if those of at least {Discarded.share} of the batches, and {Discarded.min_batches}, were zeroed without a step,\n"
    "      under manual optimisation with one optimizer",
}

SEVERITIES: dict[str, str] = {
    "dead": "warning; critical if all units are dead",
    "saturated": "warning; info for the last module, which is confident on purpose",
    "constant": "warning; info for the targets of a regression in the first epoch and while the loss falls, of CTC while it falls, "
    "for a gate at 0.5, for a relu of one number per sample at 0, as in a hinge loss, and for a module in a library's model that was so from the start",
    "nonfinite": "critical",
    "id_out_of_range": "critical",
    "silent": "info",
    "poor_init": "warning",
    "shared": "warning in a numbered list; info for modules with names of their own",
    "validation_shift": "warning",
    "attention_logits": "warning",
    "attention_collapse": "warning",
    "attention_uniform": "info",
    "masked_rows": "critical where rows become NaN; warning where a sample has no key; else info",
    "representation_collapse": "warning; info if a cross entropy is computed",
    "output_range": "warning; info for logarithms of probabilities",
    "softmax_dim": "warning",
    "dropout_in_eval": "warning",
    "precision_not_applied": "warning",
    "activation_outliers": "info; warning where the block's largest value is above a quarter of what its type holds",
    "residual_growth": "info; warning where a block's largest value is above a quarter of what its type holds, and where every block "
    "doubles it",
    "vanishing": "warning",
    "exploding": "critical where it grows over the steps, or along the model while the loss does not fall; warning where the loss falls, or the "
    "gradient is only large; info where nothing of it reaches a weight",
    "zero": "warning; info for an expert, a bias whose weight learns, and in a library's model",
    "missing": "warning; info for an unused part of a library's model, unless it holds blocks that were called or is its body, and for a copy that follows "
    "another module",
    "update_too_small": "warning",
    "not_updated": "warning",
    "update_too_large": "warning",
    "updates_lost": "warning",
    "update_spike": "warning",
    "weights_growing": "warning",
    "router_collapse": "warning",
    "dead_experts": "warning; info for less than a quarter of the experts",
    "second_moment_stale": "warning",
    "lr_zero": "warning; info for a rate that has always been 0",
    "optimizer_settings": "warning; info for a large eps that does not decide the steps",
    "not_optimized": "warning; info while the parameter gets no gradient, or without any optimizer",
    "double_softmax": "warning",
    "eval_mode": "warning; info where only the module itself is in eval mode, unless its statistics are 0 and 1",
    "frozen_statistics": "warning; info while the statistics have moved little",
    "settings": "warning; info for weight decay on biases and norms, and for parameters that two optimizers hold",
    "unregistered": "warning; info for a tensor that an optimizer holds",
    "labels_ignored": "warning; info where it is a few batches and the loss is finite",
    "batch_repeated": "warning",
    "ranks_same_batch": "warning",
    "loss_nonfinite": "critical; info where a loss scaler skips the step",
    "loss_spike": "warning",
    "loss_diverging": "warning",
    "loss_plateau": "info",
    "overfitting": "info",
    "ranks_differ": "critical",
    "always_clipped": "info; warning where it does harm",
    "clip_ineffective": "warning",
    "steps_skipped": "warning",
    "spike": "warning",
    "not_zeroed": "warning",
}

CAPTIONS: dict[str, str] = {
    "dead_units": "Dead units of each rectifier by epoch. The dashed line is the rule's threshold.",
    "gradient_flow": "RMS of the gradient at each module, from the input (left) to the loss (right).",
    "update_ratios": "Update over weight of each parameter, around 1e-3 in many healthy runs.",
    "clip_history": "Gradient norm before and after clipping, and the share of clipped steps.",
    "loss": "Training loss by optimizer step.",
    "ratio": "Variance over the samples of a batch over that within a sample, of each module in the last epoch.",
    "outputs": "What the cross entropy was given in the last epoch.",
    "dropped": "Share that each call of dropout drops in evaluation.",
    "full_precision": "Share of the weights of linear and convolution layers whose outputs are in float32.",
    "along": "Share of the calls of each softmax that are along the wrong dimension.",
    "max_logit_by_head": "Largest logit of each attention head in the last epoch.",
    "entropy_by_head": "Entropy of each attention head over its maximum in the last epoch: 0 for one key, 1 for all keys alike.",
    "masked_rows_by_head": "Share of the queries of each attention head that may attend to no key, in the last epoch.",
    "calls": "Calls of each module in the sampled batches of the last epoch.",
    "initial": "Gain of each layer's initial weights: RMS times the root of the fan-in.",
    "statistics": "How far the running statistics of frozen batch norms have moved; none where they are in eval mode.",
    "expert_load": "Share of the choices that each expert gets, by epoch. Above a bar stands how many experts got nothing.",
    "inputs": "RMS of the model's input in training and in validation.",
}

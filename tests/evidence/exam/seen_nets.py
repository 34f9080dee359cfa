"""Healthy trainings of transformers' and timm's nets, and a tutorial's, that no other module of the exam has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.healthy_timm import create, optimizer, with_cosine
from tests.evidence.exam.healthy_timm import trained as on_digits
from tests.evidence.exam.language_models import DECODER, ENCODER, PICTURES, language_model, translation
from tests.evidence.exam.pictures import digits as squares
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, scheduled, trained, warm_cosine, warm_linear
from tests.evidence.exam.seen_healthy_models import tags
from tests.evidence.exam.seen_healthy_recipes import trained as recipe
from tests.evidence.exam.signals import crops, digits, spectrograms
from tests.evidence.exam.texts import END, PAD, VOCABULARY, batches, characters, corpus, pairs

WELL = Expected()


@healthy(
    "transformers",
    "DeepSeek V3: keys and values from few latent numbers, experts by a sigmoid, beta2 of 0.95, a cosine",
)
def deepseek_v3() -> Built:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
    sizes = {**ENCODER, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4}
    net = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **latent, **experts))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(2e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "DiffLlama: a softmax less another one, each by half of the heads, in two batches a step")
def diffllama() -> Built:
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    net = DiffLlamaForCausalLM(DiffLlamaConfig(**DECODER))
    limits = {**CLIPPED, "limit_train_batches": 40, "accumulate_grad_batches": 2}
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(3e-3), 40, 4)), characters(48, 8), limits, WELL)


@healthy("transformers", "LongT5 that copies: local attention and a summary of each stretch, Adafactor at a fixed rate of 0.001")
def longt5() -> Built:
    from transformers import Adafactor, LongT5Config, LongT5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    kind = {"encoder_attention_type": "transient-global", "local_radius": 7, "global_block_size": 4}
    ends = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END}
    net = LongT5ForConditionalGeneration(LongT5Config(**sizes, **kind, **ends))
    fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    adafactor = lambda module: Adafactor(trained(module), lr=1e-3, **fixed)  # noqa: E731
    return Built(Recipe(net, translation, adafactor), pairs(24, 8), SHORT, WELL)


@healthy("transformers", "GLPN tells how far a digit's strokes are: a logarithmic loss that forgives scale, a cycle of rates")
def glpn_depth() -> Built:
    from transformers import GLPNConfig, GLPNForDepthEstimation

    sizes = {"num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16}
    config = GLPNConfig(**sizes, num_attention_heads=[1, 2, 3, 4], sr_ratios=[4, 2, 1, 1], head_in_index=-1, max_depth=10)

    def loss(net: Any, batch: Any) -> Tensor:
        depth = 9 - 1.5 * batch[0].mean(1).clamp(-1, 3)
        return net(pixel_values=batch[0], labels=depth).loss

    cycle = scheduled(adamw(2e-3), lambda chosen: torch.optim.lr_scheduler.OneCycleLR(chosen, 2e-3, 48, anneal_strategy="linear"))
    return Built(Recipe(GLPNForDepthEstimation(config), loss, cycle), digits(32, 8), SHORT, WELL)


@healthy("transformers", "wav2vec 2.0 of BERT's kind (w2v-BERT) reads spectrograms under CTC, relative positions by key")
def w2v_bert_ctc() -> Built:
    from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 12}
    options = {
        "feature_projection_input_dim": 40,
        "conv_depthwise_kernel_size": 7,
        "pad_token_id": PAD,
        "apply_spec_augment": False,
    }
    net = Wav2Vec2BertForCTC(Wav2Vec2BertConfig(**sizes, **options, ctc_loss_reduction="mean", layerdrop=0.0))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_features=batch[0].transpose(1, 2), labels=batch[1]).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), spectrograms(16), CLIPPED, WELL)


@healthy(
    "transformers", "Swin2SR doubles pieces of a photograph, absolute error, a beta2 of 0.99, a rate that halves at milestones"
)
def swin2sr() -> Built:
    from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

    sizes = {"image_size": 16, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "upscale": 2}
    net = Swin2SRForImageSuperResolution(Swin2SRConfig(**sizes, upsampler="pixelshuffledirect"))

    def loss(net: Any, batch: Any) -> Tensor:
        sharp = (batch[0] * 0.2 + 0.5).clamp(0, 1)
        return F.l1_loss(net(pixel_values=F.avg_pool2d(sharp, 2)).reconstruction, sharp)

    adam = lambda module: torch.optim.Adam(module.parameters(), 1e-3, betas=(0.9, 0.99))  # noqa: E731
    halves = scheduled(adam, lambda chosen: torch.optim.lr_scheduler.MultiStepLR(chosen, [24, 36, 42], 0.5))
    return Built(Recipe(net, loss, halves), crops(32, 4), SHORT, WELL)


@healthy("transformers", "ViLT answers which digit it sees, soft answers under a binary cross entropy")
def vilt_answers() -> Built:
    from transformers import ViltConfig, ViltForQuestionAnswering

    config = {**ENCODER, **PICTURES, "num_labels": 10, "max_position_embeddings": 16, "num_channels": 3, "max_image_length": 16}
    net = ViltForQuestionAnswering(ViltConfig(**config))

    def loss(net: Any, batch: Any) -> Tensor:
        questions = torch.tensor([*b"which digit?"]).expand(len(batch[0]), -1)
        answers = 0.7 * F.one_hot(batch[1], 10) + 0.3 * F.one_hot(batch[1] // 2 * 2, 10)
        return net(input_ids=questions, pixel_values=batch[0], labels=answers).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), digits(16, 16), SHORT, WELL)


@healthy("timm", "DaViT: attention over windows and over channels in turn, NAdamW and a cosine, smoothed labels, clipped at 1")
def timm_davit() -> Built:
    sizes = {"depths": (1, 1, 1), "embed_dims": (24, 48, 96), "num_heads": (2, 4, 8), "window_size": 4}
    net = create("davit_tiny", **sizes, drop_path_rate=0.05)
    loss = lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.1)  # noqa: E731
    return on_digits(Recipe(net, loss, with_cosine(optimizer("nadamw", 1e-3, 0.05))), gradient_clip_val=1.0)


@healthy("timm", "AugMix of timm's script: a clean picture and two changed ones agree (Jensen-Shannon), norms for each, SGD")
def timm_augmix() -> Built:
    from timm.layers import convert_splitbn_model
    from timm.loss import JsdCrossEntropy

    sizes = {"channels": (16, 24, 32, 48), "stem_width": 16, "block_args": {}, "layers": (1, 1, 1, 1)}
    net, agree = convert_splitbn_model(create("resnet14t", **sizes), 3), JsdCrossEntropy(num_splits=3, alpha=12, smoothing=0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        changed = [batch[0].roll(int(torch.randint(-3, 4, ())), 3) + 0.2 * torch.randn_like(batch[0]) for _ in range(2)]
        return agree(net(torch.cat([batch[0], *changed])), batch[1].repeat(3))

    return on_digits(Recipe(net, loss, with_cosine(optimizer("sgd", 0.05, 1e-4), 40)), 16, limit_train_batches=20)


@healthy("timm", "asymmetric loss for several labels: which digits two pictures side by side show, TinyViT, AdamW")
def timm_asymmetric() -> Built:
    from timm.loss import AsymmetricLossMultiLabel

    sizes = {"embed_dims": (16, 32, 48), "depths": (1, 1, 2), "num_heads": (1, 2, 3), "window_sizes": (4, 4, 4)}
    net, asymmetric = create("tiny_vit_5m_224", **sizes), AsymmetricLossMultiLabel(gamma_neg=4, gamma_pos=0, clip=0.05)

    def loss(net: Any, batch: Any) -> Tensor:
        both = torch.cat((batch[0], batch[0].roll(1, 0)), 3)
        shown = F.one_hot(batch[1], 10) | F.one_hot(batch[1].roll(1, 0), 10)
        return asymmetric(net(F.interpolate(both, (32, 32))), shown.float())

    return Built(Recipe(net, loss, with_cosine(optimizer("adamw", 2e-3, 0.05))), in_batches(32, *squares(16)), CLIPPED, WELL)


class Tagger(nn.Module):
    """PyTorch's tutorial on LSTM and CRF: scores of tags, scores from tag to tag, and the sum over all ways."""

    def __init__(self, tags: int = 3) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(VOCABULARY, 32), nn.LSTM(32, 24, bidirectional=True, batch_first=True)
        self.to_tags, self.transitions = nn.Linear(48, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        scores = self.to_tags(self.lstm(self.embed(ids))[0])
        ways = scores[:, 0]
        for step in range(1, ids.shape[1]):
            ways = (ways[:, :, None] + self.transitions).logsumexp(1) + scores[:, step]
        chosen = scores.gather(2, tags[..., None]).sum((1, 2)) + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        return (ways.logsumexp(1) - chosen).mean()


@healthy("torch", "an LSTM under a conditional random field finds words: a loss that is a sum over the line, SGD with decay")
def task_random_field() -> Built:
    rows = corpus()[: 30 * 1600].view(-1, 30)
    sgd = lambda module: torch.optim.SGD(module.parameters(), lr=0.01, weight_decay=1e-4)  # noqa: E731
    loss = lambda net, batch: net(*batch)  # noqa: E731
    return recipe(Tagger(), loss, sgd, batches(16, rows, tags(rows)), limit_train_batches=35)

"""Vision models of transformers for boxes, depth, videos, answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import ENCODER
from tests.evidence.exam.perception_models import PICTURES
from tests.evidence.exam.pictures import pictures
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, scheduled, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, crops, digits_in_colour
from tests.evidence.exam.small_nets import learn


@healthy("transformers", "VideoMAE: most patches of a moving digit are hidden")
def videomae() -> Built:
    from transformers import VideoMAEConfig, VideoMAEForPreTraining

    def loss(net: Any, batch: Any) -> Tensor:
        frames = torch.stack([batch[0].roll(shift, 3) for shift in range(4)], 1)
        hidden = torch.rand(32).argsort().argsort() < 24
        return net(pixel_values=frames, bool_masked_pos=hidden.expand(len(frames), -1)).loss

    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    config = VideoMAEConfig(**PICTURES, **decoder, decoder_intermediate_size=64, num_frames=4, norm_pix_loss=False)
    optimizers = warm_cosine(adamw(1.5e-3, 0.05, betas=(0.9, 0.95)))
    return Built(Recipe(VideoMAEForPreTraining(config), loss, optimizers), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "GLPN tells how far a digit's strokes are: a logarithmic loss that forgives scale, a cycle of rates")
def glpn_depth() -> Built:
    from transformers import GLPNConfig, GLPNForDepthEstimation

    sizes = {"num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16}
    config = GLPNConfig(**sizes, num_attention_heads=[1, 2, 3, 4], sr_ratios=[4, 2, 1, 1], head_in_index=-1, max_depth=10)

    def loss(net: Any, batch: Any) -> Tensor:
        depth = 9 - 1.5 * batch[0].mean(1).clamp(-1, 3)
        return net(pixel_values=batch[0], labels=depth).loss

    cycle = scheduled(adamw(2e-3), lambda chosen: torch.optim.lr_scheduler.OneCycleLR(chosen, 2e-3, 48, anneal_strategy="linear"))
    return Built(Recipe(GLPNForDepthEstimation(config), loss, cycle), digits_in_colour(32, 8), SHORT, WELL)


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

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "Swin V2 whose hidden pixels are to be found (SimMIM)")
def swin2_masked() -> Built:
    from transformers import Swinv2Config, Swinv2ForMaskedImageModeling

    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
    net = Swinv2ForMaskedImageModeling(Swinv2Config(**sizes, encoder_stride=4))

    def loss(net: Any, batch: Any) -> Any:
        hidden = torch.rand(len(batch[0]), 8, 8) < 0.5
        return net(pixel_values=batch[0], bool_masked_pos=hidden.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)).loss

    return Built(Recipe(net, loss, warm_cosine(decayed_apart(1e-3, 0.05))), digits_in_colour(32, 8), CLIPPED, WELL)


@healthy("transformers", "YOLOS: boxes around digits, matched to twenty queries")
def yolos() -> Built:
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {**PICTURES, "image_size": [16, 16], "num_detection_tokens": 10, "num_labels": 10}
    net = YolosForObjectDetection(YolosConfig(**sizes))

    def loss(net: Any, batch: Any) -> Any:
        box = torch.tensor([[0.5, 0.5, 0.6, 0.9]])
        return net(pixel_values=batch[0], labels=[{"class_labels": shown[None], "boxes": box} for shown in batch[1]]).loss

    return Built(Recipe(net, loss, adamw(5e-4, 1e-4)), digits_in_colour(16, 8), {**SHORT, "gradient_clip_val": 0.1}, WELL)


@healthy("transformers", "LiT: a trained ViT is locked and in evaluation mode, BERT learns to say what it sees (contrast)")
def locked_tower() -> Built:
    from transformers import BertConfig, BertModel, VisionTextDualEncoderModel, ViTConfig, ViTModel

    seer, head = ViTModel(ViTConfig(**PICTURES)), nn.Linear(48, 10)
    known = lambda net, batch: F.cross_entropy(net[1](net[0](batch[0]).pooler_output), batch[1])  # noqa: E731
    learn(nn.ModuleList([seer, head]), known, pictures(16, 16, 3), 150, 2e-3)
    net = VisionTextDualEncoderModel(
        vision_model=seer.eval().requires_grad_(False),
        text_model=BertModel(BertConfig(**ENCODER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    )
    loss = lambda net, batch: net(input_ids=batch[1], pixel_values=batch[0], return_loss=True).loss  # noqa: E731
    return Built(
        Recipe(net, loss, warm_cosine(adamw(1e-3), 100, 10)), captioned(16, 32), {**CLIPPED, "limit_train_batches": 50}, WELL
    )


@healthy(
    "transformers",
    "TimeSformer tells digits that move: attention over time, then over space, a warm-up and a cosine",
    learned_from=False,
)
def timesformer() -> Built:
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    def loss(net: Any, batch: Any) -> Tensor:
        frames = torch.stack([batch[0].roll(shift, 3) for shift in range(3)], 1)
        return net(pixel_values=frames, labels=batch[1]).loss

    net = TimesformerForVideoClassification(TimesformerConfig(**PICTURES, num_frames=3, num_labels=10))
    limits = {**CLIPPED, "limit_train_batches": 35}
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05), 70, 7)), digits_in_colour(16, 16), limits, WELL)


@healthy(
    "transformers",
    "CLIPSeg finds the pixels of the digit that a text names, of two side by side; binary cross entropy",
    learned_from=False,
)
def clipseg() -> Built:
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    sizes = {"reduce_dim": 24, "extract_layers": [0, 1], "decoder_num_attention_heads": 4, "decoder_intermediate_size": 48}
    text = {**ENCODER, "max_position_embeddings": 16}
    config = CLIPSegConfig(text_config=text, vision_config={**PICTURES, "image_size": 32}, projection_dim=32, **sizes)
    net = CLIPSegForImageSegmentation(config)

    def loss(net: Any, batch: Any) -> Tensor:
        both = F.pad(torch.cat([batch[0], batch[0].flip(0)], 3), (0, 0, 8, 8), value=-0.8)
        wanted = both.mean(1) > 0.5
        wanted[:, :, 16:] = False
        return net(pixel_values=both, input_ids=batch[1], labels=wanted.float()).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 1e-4))), captioned(16, 8), SHORT, WELL)

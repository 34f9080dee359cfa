"""Nets as people write them now: functional activations and attention, RMSNorm, tied embeddings, LoRA, mixtures of experts."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults.data import VOCABULARY


class CausalAttention(nn.Module):
    """``q_proj, k_proj, v_proj, o_proj`` around ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """``gate_proj, up_proj, down_proj`` with a functional SiLU, as Llama has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseMLP(nn.Module):
    """A mixture of gated MLPs, one for each token: ``router, experts``.

    Args:
        width: Of the tokens.
        experts: How many.

    Attributes:
        balance: The loss for balance of the last call (Switch Transformer, arXiv 2101.03961, equation 4).
    """

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedMLP(width) for _ in range(experts))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        likely = self.router(tokens).softmax(-1)
        weight, chosen = likely.max(-1)
        shares = F.one_hot(chosen, len(self.experts)).float().mean(0)
        self.balance = len(self.experts) * (shares * likely.mean(0)).sum()
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            taken = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, taken, weight[taken, None] * expert(tokens[taken]))
        return out.view_as(x)


class DecoderLayer(nn.Module):
    """A pre-norm layer with RMSNorm: ``input_norm, attention, post_norm, mlp``."""

    def __init__(self, width: int, sparse: bool = False) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = CausalAttention(width)
        self.mlp = SparseMLP(width) if sparse else GatedMLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Decoder(nn.Module):
    """A character model whose head is its embedding: ``embed, position, layers.0, …, norm, head``."""

    def __init__(self, layers: int = 2, width: int = 32, length: int = 32, sparse: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, sparse) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.1 / (2 * layers) ** 0.5 if last else 0.1)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


class PostNorm(nn.Module):
    """A character model of PyTorch's own encoder layers, normalised after each addition: ``embed, position, layers, head``."""

    def __init__(self, layers: int = 4, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.position(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.head(h)


class RowEncoder(nn.Module):
    """An image as a sequence of its rows, taken together by their mean: ``embed, position, layers, norm, head``.

    Args:
        added: Whether the positions are added, or looked up in vain.
    """

    def __init__(self, added: bool = True, width: int = 32) -> None:
        super().__init__()
        self.added = added
        self.embed, self.position = nn.Linear(8, width), nn.Embedding(8, width)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        placed = h + self.position(torch.arange(8))
        if self.added:
            h = placed
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            y = norm(h)
            h = h + F.gelu(attention(y, y, y, need_weights=False)[0])
        return self.head(self.norm(h).mean(1))


class LoRALinear(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices (Hu et al. 2021): ``base, lora_A, lora_B``."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.lora_B(self.lora_A(x))


def with_lora(net: nn.Module, names: Sequence[str]) -> nn.Module:
    """Freeze a net, and put adapters around its linear layers of these names."""
    net.requires_grad_(False)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoRALinear(child))
    return net


class Quantizer(nn.Module):
    """The nearest code of a book, with the straight-through gradient of VQ-VAE (van den Oord et al. 2017): ``codebook``."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(codes, width)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        nearest = self.codebook(torch.cdist(z, self.codebook.weight).argmin(-1))
        loss = F.mse_loss(nearest, z.detach()) + 0.25 * F.mse_loss(z, nearest.detach())
        return z + (nearest - z).detach(), loss


class VQVAE(nn.Module):
    """Images as eight codes each: ``encoder, quantizer, decoder``."""

    def __init__(self, codes: int = 32, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8 * width))
        self.quantizer = Quantizer(codes, width)
        self.decoder = nn.Sequential(nn.Linear(8 * width, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, loss = self.quantizer(self.encoder(x).unflatten(-1, (8, self.width)))
        return self.decoder(quantized.flatten(1)), loss


class Averaged(nn.Module):
    """A net and a teacher that is the exponential moving average of its weights: ``student, teacher``."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the teacher towards the student."""
        for average, parameter in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            average.lerp_(parameter, 1 - decay)

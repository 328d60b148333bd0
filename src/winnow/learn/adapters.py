"""Small networks between frozen image features and the texts of the classes (FedCLIP, Lu et al., 2023).

The texts' embeddings T are a buffer that no state holds: every party computes them itself, so they are neither sent nor
averaged. Logits are s·⟨I, T_c⟩ of unit vectors (equations 6 and 7); without training, all adapters but a linear layer
give those of the features themselves: zero-shot classification.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class _AmongTexts(nn.Module):
    """Features compared with the texts of the classes."""

    texts: Tensor

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("texts", functional.normalize(texts, dim=-1), persistent=False)
        self.scale = scale

    def logits(self, features: Tensor, texts: Tensor) -> Tensor:
        return self.scale * functional.normalize(features, dim=-1) @ texts.transpose(-1, -2)


class ZeroShot(_AmongTexts):
    """No adapter: one parameter without effect, as there is nothing to train."""

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__(texts, scale)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x, self.texts) + 0.0 * self.unused


class AttentionAdapter(_AmongTexts):
    """I* = g(I) ⊙ I with g = softmax(W₂·tanh(W₁·I)) (equation 5). W₂ starts at zero, where g weighs all alike."""

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__(texts, scale)
        self.attention = _attention(texts.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        unit = functional.normalize(x, dim=-1)
        return self.logits(functional.softmax(self.attention(unit), dim=-1) * unit, self.texts)


class TextAdapter(_AmongTexts):
    """The same on the other side: T* = g(T) ⊙ T."""

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__(texts, scale)
        self.attention = _attention(texts.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        texts = functional.softmax(self.attention(self.texts), dim=-1) * self.texts
        return self.logits(x, functional.normalize(texts, dim=-1))


class BottleneckAdapter(_AmongTexts):
    """I* = α·A(I) + (1 − α)·I, A of width d, d/4, d (CLIP-Adapter, Gao et al., 2024). Its last layer starts at zero."""

    def __init__(self, texts: Tensor, scale: float, mix: float) -> None:
        super().__init__(texts, scale)
        width = texts.shape[1]
        narrow = max(1, width // 4)
        self.bottleneck = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(), _zero(nn.Linear(narrow, width)))
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        unit = functional.normalize(x, dim=-1)
        return self.logits(self.mix * self.bottleneck(unit) + (1.0 - self.mix) * unit, self.texts)


class TextHead(nn.Module):
    """A linear layer over unit features, which starts as the texts of the classes; it is trained and sent."""

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.head = nn.Linear(texts.shape[1], len(texts))
        with torch.no_grad():
            self.head.weight.copy_(scale * functional.normalize(texts, dim=-1))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(functional.normalize(x, dim=-1))
        return logits


def _attention(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), _zero(nn.Linear(width, width)))


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer

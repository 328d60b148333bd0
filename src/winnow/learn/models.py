"""The models that a configuration can name, and the user's own.

`build_model(settings, sample_shape, outputs, seed)` makes one; `sample_shape` is the shape of a single sample.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from winnow.core import Choice, ModelError, derive
from winnow.data.text import MAX_WORDS, TextSettings
from winnow.learn import adapters
from winnow.learn.encoders.image_encoder import EfficientNetLite, pretrained_network
from winnow.learn.encoders.settings import build_text_encoder, check_text_encoder
from winnow.learn.networks import SHUFFLENET_WIDTHS, LeNet5, LstmNet, ResNet18, ShuffleNetV2, SmallCnn, WordMeanNet
from winnow.learn.own_code import load_own_function
from winnow.learn.phone_network import PhoneTransferNet

Shape = tuple[int, ...]
Width = Annotated[int, Field(ge=1, le=65_536)]
"""Units or channels of a layer."""


class ModelSettings(Choice):
    """A model, chosen by name. `output` says which of several outputs is the prediction."""

    output: str | None = None

    @abstractmethod
    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        """The model for samples of this shape, with freshly drawn parameters."""


class LinearModel(ModelSettings):
    """One dense layer: linear or logistic regression."""

    name: Literal["linear"] = "linear"

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(_size(sample_shape), outputs))


class MlpModel(ModelSettings):
    """Dense layers with an activation between them."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Width, ...] = Field((64, 32), min_length=1)
    activation: Literal["relu", "tanh"] = "relu"

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        activation = nn.ReLU if self.activation == "relu" else nn.Tanh
        layers: list[nn.Module] = [nn.Flatten()]
        width = _size(sample_shape)
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), activation()]
            width = hidden
        return nn.Sequential(*layers, nn.Linear(width, outputs))


class CnnModel(ModelSettings):
    """Two small convolutions and a dense layer, for images as small as 8 × 8, with a kernel of 5 as 16 × 16."""

    name: Literal["cnn"] = "cnn"
    channels: tuple[Width, Width] = (8, 16)
    hidden: Width = 32
    norm: Literal["none", "group"] = "none"
    kernel: Literal[3, 5] = 3

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        image = _image(self.name, sample_shape, smallest=4 if self.kernel == 3 else 16)
        return SmallCnn(image, self.channels, self.hidden, outputs, norm=self.norm == "group", kernel=self.kernel)


class LeNet5Model(ModelSettings):
    """LeNet-5 with rectifiers and max-pooling; images from 8 × 8."""

    name: Literal["lenet5"] = "lenet5"
    channels: tuple[Width, Width] = (6, 16)
    hidden: tuple[Width, Width] = (120, 84)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        return LeNet5(_image(self.name, sample_shape, smallest=8), outputs, self.channels, self.hidden)


class ResNet18Model(ModelSettings):
    """ResNet-18 with the stem for small images: a 3 × 3 convolution and no pooling."""

    name: Literal["resnet18"] = "resnet18"

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        return ResNet18(_image(self.name, sample_shape, smallest=1)[0], outputs)


class ShuffleNetV2Model(ModelSettings):
    """ShuffleNet v2 with the stem for small images: 24 channels at full resolution."""

    name: Literal["shufflenet-v2"] = "shufflenet-v2"
    width: float = 1.0

    @field_validator("width")
    @classmethod
    def _published(cls, width: float) -> float:
        if width not in SHUFFLENET_WIDTHS:
            raise ValueError(f"choose one of {', '.join(map(str, SHUFFLENET_WIDTHS))}")
        return width

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        return ShuffleNetV2(_image(self.name, sample_shape, smallest=1)[0], outputs, width=self.width)


class LstmModel(ModelSettings):
    """An LSTM whose last hidden state is read out; over features [t, f], or token identifiers [t] of a vocabulary."""

    name: Literal["lstm"] = "lstm"
    hidden: Width = 64
    layers: int = Field(1, ge=1, le=64)
    vocabulary: int | None = Field(None, ge=1)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        wanted = 2 if self.vocabulary is None else 1
        if len(sample_shape) != wanted:
            form = "[time, features]" if self.vocabulary is None else "[time] (token identifiers)"
            raise ModelError(f"model 'lstm' needs samples of shape {form}; the samples have shape {sample_shape}")
        features = sample_shape[1] if self.vocabulary is None else None
        return LstmNet(features, self.vocabulary, self.hidden, self.layers, outputs)


class WordMeanModel(ModelSettings):
    """The mean of a text's word vectors, and a dense layer; over identifiers [t] of so many words."""

    name: Literal["word-mean"] = "word-mean"
    width: Width = 32
    vocabulary: int = Field(TextSettings().words, ge=2, le=MAX_WORDS)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        if len(sample_shape) != 1:
            raise ModelError(f"model 'word-mean' needs texts (data.text); the samples have shape {sample_shape}")
        return WordMeanNet(self.vocabulary, self.width, outputs)


class AdapterModel(ModelSettings):
    """FedCLIP's adapter over the features of a frozen encoder (`[encode]`), beside the embeddings of a text for each
    class. `kind` is which adapter, `scale` the factor s of the cosines, and `mix` the share of a bottleneck's output.
    """

    name: Literal["adapter"] = "adapter"
    kind: Literal["attention", "text", "bottleneck", "head", "none"] = "attention"
    texts: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = Field(min_length=2, max_length=10_000)
    text_encoder: str = "minilm"
    scale: float = Field(20.0, gt=0, le=1000)
    mix: float = Field(0.2, gt=0, le=1)

    @field_validator("text_encoder")
    @classmethod
    def _known_or_own(cls, name: str) -> str:
        return check_text_encoder(name)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        if len(self.texts) != outputs:
            raise ModelError(f"model 'adapter' has {len(self.texts)} texts for {outputs} classes; write one a class")
        texts = torch.from_numpy(build_text_encoder(self.text_encoder)(self.texts))
        if sample_shape != tuple(texts.shape[1:]):
            raise ModelError(
                f"model 'adapter' compares features with texts of {texts.shape[1]} numbers, and samples have shape "
                f"{sample_shape}; set encode.align = 'ridge', or choose an encoder of that space"
            )
        return self._adapter(texts)

    def _adapter(self, texts: Tensor) -> nn.Module:
        match self.kind:
            case "attention":
                return adapters.AttentionAdapter(texts, self.scale)
            case "text":
                return adapters.TextAdapter(texts, self.scale)
            case "bottleneck":
                return adapters.BottleneckAdapter(texts, self.scale, self.mix)
            case "head":
                return adapters.TextHead(texts, self.scale)
            case "none":
                return adapters.ZeroShot(texts, self.scale)


class EfficientNetModel(ModelSettings):
    """EfficientNet-Lite0 as ImageNet trained it, with a new last layer: the whole network is trained and sent.

    Pictures are not scaled (`data.scale = "none"`): it does so itself, from 0 … `white`, and resizes them to `side`.
    """

    name: Literal["efficientnet-lite0"] = "efficientnet-lite0"
    side: int = Field(224, ge=32, le=512)
    white: float = Field(255.0, gt=0)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        if _image(self.name, sample_shape, smallest=8)[0] not in (1, 3):
            raise ModelError(f"model '{self.name}' needs pictures of 1 or 3 channels, not {sample_shape[0]}")
        return EfficientNetLite(pretrained_network(outputs), self.side, self.white)


class PhonesModel(ModelSettings):
    """Private towers for speech and text, a shared branch over phones, and a private fusion; over packed rows of
    frames × bands energies, word identifiers and phone numbers. Without `sounds` the branch has no table of what phones
    sound like, without `fused` the fusion sees the tower alone. `phone_length` scales what it sees of phones.
    """

    name: Literal["phones"] = "phones"
    frames: int = Field(40, ge=1, le=800)
    bands: int = Field(16, ge=1, le=512)
    vocabulary: int = Field(4096, ge=2, le=MAX_WORDS)
    words: int = Field(24, ge=1, le=800)
    phones: int = Field(40, ge=2, le=256)
    width: Width = 32
    sounds: bool = True
    fused: bool = True
    phone_length: float | None = Field(None, gt=0)

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        least = self.frames * self.bands + self.words + 1
        if len(sample_shape) != 1 or sample_shape[0] < least:
            raise ModelError(
                f"model 'phones' needs rows of {self.frames} × {self.bands} energies, {self.words} words and phones, "
                f"{least} numbers or more; the samples have shape {sample_shape}"
            )
        return PhoneTransferNet(
            frames=self.frames,
            bands=self.bands,
            words=self.vocabulary,
            word_length=self.words,
            phones=self.phones,
            width=self.width,
            outputs=outputs,
            sounds=self.sounds,
            uses_phones=self.fused,
            phone_length=self.phone_length,
        )


class PythonModel(ModelSettings):
    """A function or class in the user's own file, called as `function(sample_shape, outputs)` or without arguments."""

    name: Literal["python"] = "python"
    factory: str = Field(pattern=r"^.+\.py(:[A-Za-z_]\w*)?$")

    def build(self, sample_shape: Shape, outputs: int) -> nn.Module:
        factory = load_own_function(self.factory, "model")
        try:
            model = factory(sample_shape, outputs) if _takes_shapes(factory) else factory()
        except Exception as error:  # a user's code may fail in any way
            raise ModelError(
                f"'{self.factory}' failed for samples of shape {sample_shape} and {outputs} outputs: {error!r}"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(f"'{self.factory}' returned {type(model).__name__}; it must return a torch.nn.Module")
        return model


def build_model(settings: ModelSettings, sample_shape: Shape, outputs: int, seed: int) -> nn.Module:
    """The model with parameters drawn from the seed alone; torch's own generator is left as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(seed, "model") % 2**63)
        return settings.build(sample_shape, outputs)


def _takes_shapes(factory: Callable[..., Any]) -> bool:
    """Whether it is to be given a sample's shape and the number of outputs: a class that needs no argument is not."""
    try:
        expected = inspect.signature(factory).parameters.values()
    except ValueError:  # its arguments cannot be told
        return True
    positional = [each for each in expected if each.kind is not each.KEYWORD_ONLY]
    needed = [each for each in positional if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return bool(needed if isinstance(factory, type) else positional)


def _size(sample_shape: Shape) -> int:
    return int(torch.Size(sample_shape).numel())


def _image(name: str, sample_shape: Shape, *, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width) of an image sample."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        wanted = f"images [channels, height, width] of at least {smallest} × {smallest}"
        raise ModelError(f"model '{name}' needs {wanted}; the samples have shape {sample_shape}")
    channels, height, width = sample_shape
    return channels, height, width

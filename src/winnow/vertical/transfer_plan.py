"""What is trained in transfer learning: two encoders into one space, and a head that labels what is in it."""

from dataclasses import dataclass
from typing import ClassVar

from winnow.core import ConfigError
from winnow.vertical.split_plan import SplitPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class TransferPlan(SplitPlan):
    """`bottoms` are the encoders of both owners, `top` is the head. It is trained at the owner of the labels, over rows
    that only this owner has as well, and at the end the other owner gets it.
    """

    kind: ClassVar[str] = "transfer-learning"
    words: ClassVar[tuple[str, str]] = ("encoder", "head")
    setting_names: ClassVar[tuple[str, ...]] = (*SplitPlan.setting_names, "align", "own_batch_size")

    align: float = 1.0
    """What the distance of the two owners' representations of a common row weighs, beside the loss of its label."""
    own_batch_size: int = 256
    """Labelled rows that the other owner does not have, beside each batch of common ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.bottoms) != 2 or self.labels not in self.bottoms:
            raise ConfigError("encoders: name two owners with their modules; one of them has the labels")
        if self.align < 0:
            raise ConfigError(f"align is {self.align:g}; it must be at least 0")
        if self.own_batch_size < 1:
            raise ConfigError(f"own_batch_size is {self.own_batch_size}; it must be at least 1")

    @property
    def rounds(self) -> int:
        """The last one brings the head to the other owner."""
        return super().rounds + 1

    @property
    def receiver(self) -> str:
        """The owner without labels, for whose columns the model is."""
        (name,) = self.senders
        return name

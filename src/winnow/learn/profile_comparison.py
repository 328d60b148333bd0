"""How profiles are compared with the reference's, and so who gets to see them.

A `ProfileComparison` is the setting. It has a side at the server, the `ReferenceProfileBuilder`, which makes a
reference profile of what its holders send, and it may have one at the sites: handlers for exchanges of its own, and
filters on what leaves a site.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from winnow.core import Arrays, Choice, Filter, Handler, Randomness, Reply
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.profile_by_class import ClassProfile, class_profile_fault
from winnow.learn.representation_profile import Profile, ReferenceProfile, SendTasks, pool_profiles, profile_fault


@dataclass(frozen=True, kw_only=True)
class SiteExtension:
    """What sites do besides: tasks that they can answer, and filters on their replies."""

    handlers: Mapping[str, Handler[Any]] = field(default_factory=dict)
    filters: Sequence[Filter[Any]] = ()
    settings: Mapping[str, type] = field(default_factory=dict)
    """Of what type the settings of those tasks are, where they are no plain values: they must be read again."""

    def around(self, inner: "SiteExtension") -> "SiteExtension":
        """Both together; these filters are the outer ones."""
        return SiteExtension(
            handlers={**inner.handlers, **self.handlers},
            filters=(*self.filters, *inner.filters),
            settings={**inner.settings, **self.settings},
        )


class ReferenceProfileBuilder(ABC):
    """The server's side, in one run, where clients hold the reference set."""

    @abstractmethod
    def prepare(self, ask: SendTasks) -> None:
        """Called before the holders are asked for a profile: the place for exchanges that must come first."""

    @abstractmethod
    def fault(self, part: Arrays, samples: int) -> str | None:
        """What is wrong with a holder's profile, as it came; None if `reference` can use it. It has so many samples."""

    @abstractmethod
    def reference(self, replies: Sequence[Reply], sizes: Sequence[int]) -> ReferenceProfile:
        """The reference profile out of what its holders replied; each holds so many samples."""


class ProfileComparison(Choice, AlgorithmPart):
    """A way to compare profiles."""

    name: str

    def profile_bytes(self, plain: int) -> int:
        """What a profile weighs on its way to the server, given what it weighs in the clear."""
        return plain

    @abstractmethod
    def start(
        self, holders: Sequence[int], clients: int, elements: int, classes: int | None
    ) -> ReferenceProfileBuilder:
        """Begin a run with these holders of the reference set, among so many clients, and profiles of so many elements,
        by so many classes if any.
        """

    def site_extension(self, randomness: Randomness) -> SiteExtension:
        return SiteExtension()


class PlainComparison(ProfileComparison):
    """The server sees every profile, and compares them itself."""

    name: Literal["plain"] = "plain"

    def privacy_text(self) -> str:
        return (
            "plain profiles: the server sees, for each client, the mean and variance of every element of one layer's "
            "output. This costs a few kilobytes per client and round."
        )

    def start(
        self, holders: Sequence[int], clients: int, elements: int, classes: int | None
    ) -> ReferenceProfileBuilder:
        return _PlainReferenceBuilder(elements, classes)


class _PlainReferenceBuilder(ReferenceProfileBuilder):
    def __init__(self, elements: int, classes: int | None) -> None:
        self._elements, self._classes = elements, classes

    def prepare(self, ask: SendTasks) -> None:
        """Nothing needs to come first."""

    def fault(self, part: Arrays, samples: int) -> str | None:
        if self._classes is None:
            return profile_fault(part, self._elements)
        return class_profile_fault(part, (self._classes, self._elements), samples)

    def reference(self, replies: Sequence[Reply], sizes: Sequence[int]) -> Profile | ClassProfile:
        parts = [reply.payload["profile"] for reply in replies]
        if self._classes is None:
            return pool_profiles([Profile.of(part) for part in parts], sizes)
        return ClassProfile.pooled([ClassProfile.of(part) for part in parts])

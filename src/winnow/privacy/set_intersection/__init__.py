"""Private set intersection: which identifiers sites have in common, or only how many, and nothing of the others.

`site` is what sites do, `workflow` is who asks whom, `psi_protocol` is what two of them send each other.
"""

from winnow.privacy.set_intersection.psi_protocol import Reveal
from winnow.privacy.set_intersection.site import SetIntersectionSite
from winnow.privacy.set_intersection.workflow import SetIntersection

__all__ = ["Reveal", "SetIntersection", "SetIntersectionSite"]

"""Private set intersection: which identifiers sites have in common, or only how many, and nothing of the others.

`site` is what sites do, `workflow` is who asks whom, `library` is openmined-psi.
"""

from winnow.privacy.intersect.library import Reveal
from winnow.privacy.intersect.site import Intersecting
from winnow.privacy.intersect.workflow import Intersection

__all__ = ["Intersecting", "Intersection", "Reveal"]

"""The number of examples of a property that needs more or fewer than the profile's.

@settings(max_examples=as_profile(400))   # 400 with the profile `ci`, 100 with `dev`
"""

from __future__ import annotations

from hypothesis import settings

CI_EXAMPLES = 200  # of a property without settings


def as_profile(examples: int) -> int:
    """The number of examples in the current profile, at least 3; `examples` is the number in profile `ci`."""
    return max(3, examples * settings().max_examples // CI_EXAMPLES)

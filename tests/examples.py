"""How many examples a property tries that needs more or fewer than others, in each Hypothesis profile.

@settings(max_examples=as_profile(400))   # 400 with the profile `ci`, 100 with `dev`
"""

from __future__ import annotations

from hypothesis import settings

CI_EXAMPLES = 200  # of a property that says nothing


def as_profile(examples: int) -> int:
    """`examples` is the number of the profile `ci`; that of the profile in use, at least 3."""
    return max(3, examples * settings().max_examples // CI_EXAMPLES)

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kernel.troubles import Troubles, TroubleSource

SOURCES = st.sampled_from(TroubleSource)


@given(st.lists(st.tuples(SOURCES, st.sampled_from(["", "one", "two"]))))
def test_each_source_replaces_only_its_own_trouble_and_the_first_in_order_is_shown(
    shown: list[tuple[TroubleSource, str]],
) -> None:
    troubles, expected = Troubles(), {}
    for source, words in shown:
        troubles.show(source, words)
        expected[source] = words
    assert {source: troubles.of(source) for source in expected} == expected
    present = [source for source in TroubleSource if expected.get(source)]
    assert troubles.source == (present[0] if present else None)
    assert troubles.words == (expected[present[0]] if present else "")

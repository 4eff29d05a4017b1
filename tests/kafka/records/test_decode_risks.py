"""A batch that killed two owners is not decoded by a third. All others are, whenever owners are killed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.decode_risks import MOST_OWNERS, DecodeRisks, DecodeVerdict
from app.offsets.model.producer_progress import audit_of, risks_of, with_audit, with_risks

SAVED = 1


def new_owner(noted: tuple[tuple[int, int], ...], offset: int) -> DecodeRisks:
    """An owner that inherited the note, and has met the batch at `offset`."""
    risks = DecodeRisks()
    risks.inherit(noted)
    assert risks.verdict(offset) is DecodeVerdict.WAIT
    return risks


def test_risky_batch_is_decoded_only_after_its_note_is_saved() -> None:
    risks = new_owner((), 100)
    noted_at = risks.version
    assert risks.verdict(100) is DecodeVerdict.WAIT
    assert not risks.saved(noted_at - 1, noted_at), "taken before it was noted"
    assert risks.verdict(100) is DecodeVerdict.WAIT
    assert risks.saved(noted_at, noted_at + 5)
    assert risks.verdict(100) is DecodeVerdict.DECODE
    assert risks.noted(0) == ((100, 1),)
    risks.ended(100)
    assert risks.noted(0) == ()
    assert risks.version > noted_at, "that is saved, too"


def test_batch_that_killed_two_owners_is_not_decoded_by_a_third() -> None:
    note = new_owner((), 100).noted(0)
    note = new_owner(note, 100).noted(0)
    third = DecodeRisks()
    third.inherit(note)
    assert third.verdict(100) is DecodeVerdict.STASH
    assert third.noted(0) == ()


@given(
    st.lists(st.sampled_from(["killed before", "killed behind", "let go", "killed elsewhere"]), max_size=20)
)
def test_owners_that_die_at_other_times_condemn_no_batch(ends: list[str]) -> None:
    note: tuple[tuple[int, int], ...] = ()
    for end in ends:
        risks = DecodeRisks()
        risks.inherit(note)
        if end == "killed before":  # it met no such batch
            note = risks.noted(0)
            continue
        assert risks.verdict(100) is DecodeVerdict.WAIT
        if end == "let go":
            risks.withdraw()
        elif end == "killed elsewhere":
            risks.saved(risks.version, risks.version)
            risks.ended(100)
            assert risks.verdict(200) is DecodeVerdict.WAIT
            risks.withdraw()
        else:
            risks.saved(risks.version, risks.version)
            assert risks.verdict(100) is DecodeVerdict.DECODE
            risks.ended(100)
        note = risks.noted(0)
        assert note == ()


@given(st.integers(0, 50), st.integers(0, 3))
def test_note_is_kept_until_its_batch_is_finished(base: int, began: int) -> None:
    risks = DecodeRisks()
    risks.inherit([(25, began)])
    assert risks.noted(base) == (((25, began),) if base <= 25 else ())


def test_note_travels_with_other_notes_to_the_successor() -> None:
    note = with_risks(with_audit(b"", 7, b"audit"), 7, ((9, MOST_OWNERS),))
    assert (risks_of(note), audit_of(note)) == (((9, MOST_OWNERS),), b"audit")
    assert risks_of(with_audit(b"", 7, b"audit")) == ()
    assert risks_of(b"") == risks_of(b"\xff") == ()

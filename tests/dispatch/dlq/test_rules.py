"""Queries, verdicts and records of operations, for every possible letter. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.dlq.letter import DeadLetter, described, exported, preview, read_letter, unwhole, whole
from app.dispatch.dlq.operation_progress import (
    MAX_METADATA_BYTES,
    OperationProgress,
    OperationTerms,
    PartitionProgress,
    check_operation,
    pack,
    unpack,
)
from app.dispatch.dlq.query import MAX_QUERY_BYTES, BadQuery, LetterQuery, parse_when
from app.dispatch.dlq.rules import LetterChoice, MergeVerdict, bounded, copy_headers, judge, parse_range
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES

CODES = ["INTERNAL", "DATA_LOSS", ""]
text = st.text(max_size=12)
header_values = st.none() | st.binary(max_size=25)
header_names = st.sampled_from(
    [
        names.ORIGIN_TOPIC,
        names.ATTEMPT,
        names.REASON,
        names.CODE,
        names.MOVED_AT,
        MERGES,
        names.RAW_BATCH,
        "own",
    ]
)


@st.composite
def letters(draw: st.DrawFn) -> DeadLetter:
    return DeadLetter(
        partition=draw(st.integers(0, 2)), offset=draw(st.integers(0, 20)), timestamp_ms=0, value=b"v",
        moved_ms=draw(st.integers(0, 50)), key=draw(st.none() | st.binary(max_size=2)), headers=(),
        reason=draw(text), code=draw(st.sampled_from(CODES)), attempt=draw(st.integers(0, 5)),
        merges=draw(st.integers(0, 5)), raw=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def queries(draw: st.DrawFn) -> LetterQuery:
    return LetterQuery(
        reason=draw(st.none() | st.text(st.characters(exclude_characters="/", codec="utf-8"), max_size=3)),
        code=tuple(draw(st.lists(st.sampled_from(["internal", "DATA_LOSS"]), max_size=2))),
        since_ms=draw(st.none() | st.integers(0, 50)), until_ms=draw(st.none() | st.integers(0, 50)),
        key=draw(st.none() | st.sampled_from(["a", "", "base64:AA=="])),
        attempt_min=draw(st.none() | st.integers(0, 5)),
        partition=tuple(draw(st.lists(st.integers(0, 2), max_size=2))),
    )  # fmt: skip


class Record:
    partition, offset, timestamp, key, value = 1, 2, 3, b"k", b"v"

    def __init__(self, headers: list[tuple[str, bytes | None]]) -> None:
        self.headers = headers


@given(st.lists(st.tuples(header_names, header_values), max_size=8))
def test_a_letter_can_be_read_with_any_header(
    headers: list[tuple[str, bytes | None]],
) -> None:
    letter = read_letter(Record(headers))
    assert letter.merges >= 0
    json.dumps(exported(letter))
    json.dumps(described(letter))
    copied = copy_headers(letter, 5)
    assert [h for h in copied if h[0] == "own"] == [h for h in headers if h[0] == "own"]
    assert read_letter(Record(copied)).merges == letter.merges + 1
    assert not read_letter(Record(copied)).raw


@given(letters(), queries())
def test_each_condition_narrows_and_none_selects_all(letter: DeadLetter, query: LetterQuery) -> None:
    assert LetterQuery().holds(letter)
    parts = [
        LetterQuery(**{name: value})
        for name, value in vars(query).items()
        if name in LetterQuery.__dataclass_fields__
    ]
    assert query.holds(letter) == all(part.holds(letter) for part in parts)
    assert LetterQuery.from_json(query.to_json()) == query


@given(letters(), queries(), queries(), st.integers(1, 6), st.integers(1, 6), st.integers(0, 21))
def test_a_letter_is_merged_by_one_merge_and_never_beyond_its_count(
    letter: DeadLetter, first: LetterQuery, second: LetterQuery, most: int, later_most: int, reached: int
) -> None:
    began = OperationProgress(
        "a", OperationTerms(first, most), {p: PartitionProgress(0, 21, reached) for p in range(3)}
    )
    earlier = judge(letter, first, most, []) if letter.offset < reached else MergeVerdict.OTHER
    later = judge(letter, second, later_most, [began.past()])
    assert not (earlier == later == MergeVerdict.MERGE)
    if later == MergeVerdict.MERGE:
        assert letter.merges < later_most
        assert not letter.raw
        assert second.holds(letter)
    if earlier != MergeVerdict.MERGE:
        assert later == judge(letter, second, later_most, []), "what was not merged is not forgotten"


@given(letters(), queries(), queries(), st.integers(0, 21), st.booleans())
def test_only_a_purged_letter_is_gone_for_queries_merges_and_purges(
    letter: DeadLetter, first: LetterQuery, second: LetterQuery, reached: int, again: bool
) -> None:
    began = OperationProgress(
        "a", OperationTerms(first, purge=True), {p: PartitionProgress(0, 21, reached) for p in range(3)}
    )
    gone = letter.offset < reached and first.holds(letter)
    assert began.past().took(letter) == gone
    assert LetterChoice(second, [began.past()]).holds(letter) == (second.holds(letter) and not gone)
    merge, purge = OperationTerms(second, 9, again), OperationTerms(second, purge=True)
    for terms, else_ in (
        (merge, MergeVerdict.RAW if letter.raw else MergeVerdict.MERGE),
        (purge, MergeVerdict.PURGE),
    ):
        held = MergeVerdict.GONE if gone else else_
        assert terms.judge(letter, terms.past_of([began])) == (
            held if second.holds(letter) else MergeVerdict.OTHER
        )


@given(
    queries(), st.integers(1, 1000), st.booleans(), st.integers(0, 9), st.dictionaries(text, st.integers(0))
)
def test_the_record_of_an_operation_is_read_back_as_written(
    query: LetterQuery, most: int, again: bool, next_offset: int, counts: dict[str, int]
) -> None:
    counts = {name: count % 2**60 for name, count in list(counts.items())[:5] if name.isprintable()}
    terms, part = OperationTerms(query, most, again, not again), PartitionProgress(0, 9, next_offset, counts)
    assert unpack(pack(terms, part), next_offset) == (terms, part)


@given(st.text(max_size=40))
def test_a_foreign_commit_is_not_taken_for_a_merge(metadata: str) -> None:
    assert unpack(metadata, 3) is None


@pytest.mark.parametrize("metadata", ["{}", "[]", "null", '{"start":0,"end":1,"query":{},"max_merges":-1}'])
def test_a_damaged_commit_of_a_merge_is_ignored(metadata: str) -> None:
    assert unpack(metadata, 0) is None


def test_the_longest_query_fits_into_a_commit() -> None:
    counts = dict.fromkeys([*map(str, MergeVerdict), "refused", "expired"], 10**15)
    longest = OperationTerms(
        LetterQuery(reason="\x00" * 400, code=tuple("C" * 15 for _ in range(20))), 1000, True
    )
    assert len(pack(longest, PartitionProgress(10**15, 10**15, 10**15, counts))) <= MAX_METADATA_BYTES
    with pytest.raises(BadQuery, match=f"more than {MAX_QUERY_BYTES} bytes"):
        LetterQuery(reason="\x00" * 500, key="\x01" * 500)


def test_reasons_are_found_by_text_or_by_expression_in_any_case() -> None:
    letter = replace(read_letter(Record([])), reason="Timeout after 30s at Ledger")
    assert LetterQuery(reason="timeout AFTER").holds(letter)
    assert LetterQuery(reason="/after \\d+s/").holds(letter)
    assert not LetterQuery(reason="/^after/").holds(letter)
    assert not LetterQuery(reason="after \\d").holds(letter)


def test_an_expression_cannot_run_for_ever() -> None:
    letter = replace(read_letter(Record([])), reason="a" * 1000)
    # a backtracking engine never ends here
    assert not LetterQuery(reason="/(a|a|aa)*(a+)+(a*)*b/").holds(letter)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"reson": "x"}, "reson: no such condition"),
        ({"reason": "/(/"}, "RE2 cannot read the expression"),
        ({"reason": "/(?=a)/"}, "RE2 cannot read the expression"),
        ({"reason": "x" * 501}, "at most 500"),
        ({"reason": 5}, "must be text"),
        ({"code": "INTERNAL"}, "must be a list"),
        ({"code": ["no such"]}, "not a status"),
        ({"key": "base64:x"}, "not base64"),
        ({"attempt_min": -1}, "whole number"),
        ({"attempt_min": True}, "whole number"),
        ({"since_ms": 1.5}, "whole number"),
        ({"partition": [0] * 33}, "at most 32"),
        ([], "must be an object"),
    ],
)
def test_a_meaningless_query_is_refused(data: Any, words: str) -> None:
    with pytest.raises(BadQuery, match=words):
        LetterQuery.from_json(data)


def test_times_are_ago_or_iso_or_milliseconds() -> None:
    assert parse_when("1h30m", 10_000_000) == 10_000_000 - 5_400_000
    assert parse_when("1970-01-01T00:01", 5) == 60_000
    assert parse_when("1970-01-01T01:01+01:00", 5) == 60_000
    assert parse_when("1700000000000", 5) == 1_700_000_000_000
    for wrong in ("", "yesterday", "-1h", "99999-01-01"):
        with pytest.raises(BadQuery, match="is not a time"):
            parse_when(wrong, 5)


spans = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 9), st.integers(0, 9)))


@given(spans, spans, st.sets(st.integers(0, 3)))
def test_bounds_stay_within_the_log_and_the_wanted_offsets(
    ends: Any, wanted: Any, partitions: set[int]
) -> None:
    ends = {p: (min(span), max(span)) for p, span in ends.items()}
    if not (partitions | set(wanted)) <= set(ends):
        with pytest.raises(BadQuery, match="does not exist"):
            bounded(ends, wanted, partitions)
        return
    found = bounded(ends, wanted, partitions)
    inside = {(p, o) for p, (start, end) in found.items() for o in range(start, end)}
    assert inside == {
        (p, o)
        for p, (first, last) in ends.items()
        for o in range(first, last)
        if (not partitions or p in partitions)
        and (not wanted or (p in wanted and wanted[p][0] <= o < wanted[p][1]))
    }


def test_ranges_are_read_or_refused() -> None:
    assert parse_range("0:100-200") == (0, (100, 200))
    assert parse_range("3:-7") == (3, (0, 7))
    assert parse_range("3:7-")[1][0] == 7
    for wrong in ("", "0", "0:5", "a:1-2", "0:1-2-3", "0:x-", "0:" + "9" * 20 + "-"):
        with pytest.raises(BadQuery, match="is not a range"):
            parse_range(wrong)
    for wrong in ("", "a b", "a.b", "x" * 41, "ü"):
        with pytest.raises(BadQuery, match="letters, digits"):
            check_operation(wrong)


@given(st.none() | st.binary(max_size=40))
def test_bytes_survive_an_export(data: bytes | None) -> None:
    assert unwhole(json.loads(json.dumps(whole(data)))) == data


def test_a_preview_is_json_text_or_hex_and_bounded() -> None:
    assert preview(None) is None
    assert preview(b'{"a": 1}') == {"bytes": 8, "cut": False, "as": "json", "shown": {"a": 1}}
    assert preview(b"{no") == {"bytes": 3, "cut": False, "as": "text", "shown": "{no"}
    assert preview("€€".encode(), 4) == {"bytes": 6, "cut": True, "as": "text", "shown": "€"}
    shown = preview(b"\xff\x00A" + b"\x00" * 100, 64)
    assert shown is not None
    assert (shown["as"], shown["bytes"], shown["cut"]) == ("hex", 103, True)
    assert shown["shown"] == "00000000  ff 00 41 00 00 00 00 00 00 00 00 00 00 00 00 00  ..A............."

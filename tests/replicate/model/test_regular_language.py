"""Languages of names: expressions mean the same as in RE2, and proofs about them are right."""

from __future__ import annotations

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from app.replicate.model import regular_language
from app.replicate.model.name_patterns import AnyOf, BadExpression, check_expression, language
from app.replicate.model.regular_language import LETTERS, LanguageTable, Matcher, TooComplicated
from tests.replicate.model.route_oracle import SHORT, expressions

words_of_letters = st.text(LETTERS, max_size=8) | st.text("ab.", max_size=6)


@given(expressions, st.lists(words_of_letters, max_size=5))
def test_an_expression_means_the_same_names_as_in_re2(text: str, names: list[str]) -> None:
    matches = Matcher(lambda words: language(words, text))

    for name in [*names, *SHORT[:40]]:
        assert matches(name) == (re2.fullmatch(text, name) is not None), name


@pytest.mark.parametrize(
    "text", [r"[a-z]+-[0-9]{1,3}", r"[^.]+\.v\d", r"(?:x|y)\W", "[]a]+", "[a-]+", r"[\w.]+-?", "^a|b$",
             "a{0}b+", r"a\-b.", "(|a)b+", "x{3,}", r"\D\S", "a|", "[^-_]*", r"[\.\-]+."],
)  # fmt: skip
def test_the_usual_syntax_means_the_same_names_as_in_re2(text: str) -> None:
    matches = Matcher(lambda words: language(words, text))

    for name in ["", "a", "b", "ab", "aab", "bb", "x", "xxx", "xxxxx", "abc-12", "abc-1234", "a.v1", "a..v1",
                 "x.", "x-", "y_", "a-a", "-", "a-b.", "a-bb", "-.-.a", "A0", "ab-", "a.b-"]:  # fmt: skip
        assert matches(name) == (re2.fullmatch(text, name) is not None), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [("*", "write .* for any text"), ("a**", "a repetition repeats another"), ("a(b", "is not closed"),
     ("a)b", "one ')' too many"), ("[ab", "is not closed"), ("[b-a]", "this is no range"),
     ("(?i)a", "not supported"), ("(?=a)b.", "not supported"), (r"\bab", "not supported"),
     (r"a\1", "not supported"),
     (r"\Qa", "not supported"), ("[[:alpha:]]", "not supported"), ("a{2", "this repetition is not"),
     ("a{3,2}", "this repetition is not"), ("a{250}", "at most 249"), ("(a{200}){200}", "repeat less often"),
     ("a^b+", "the whole name"), ("a$b+", "the whole name"), ("two words", "matches no name"),
     ("a/b", "matches no name"), ("a*" * 251, "longer"), ("(" * 30 + "a" + ")" * 30, "nested too deeply"),
     ("()", "matches no name"), ("a\\", "not supported")],
)  # fmt: skip
def test_an_invalid_expression_is_refused_with_a_remedy(text: str, expected: str) -> None:
    with pytest.raises(BadExpression) as caught:
        check_expression(text)

    message, _, remedy = str(caught.value).partition("; ")
    assert expected in str(caught.value)
    assert message
    assert remedy


@given(st.text(max_size=30))
def test_any_text_is_an_expression_or_refused_as_invalid(text: str) -> None:
    problem = ""
    try:
        check_expression(text)
    except BadExpression as error:
        problem = str(error)
    assert not problem or "; " in problem


def test_the_point_in_a_name_is_a_point() -> None:
    matches = Matcher(lambda words: language(words, "orders.created"))

    assert matches("orders.created")
    assert not matches("orders-created")


@given(expressions, expressions, expressions)
def test_a_shortest_common_word_of_languages_is_found(one: str, two: str, not_: str) -> None:
    words = LanguageTable()
    common = words.both(language(words, one), language(words, two), words.no(language(words, not_)))
    found = words.shortest(common)

    def member(word: str) -> bool:
        return bool(re2.fullmatch(one, word) and re2.fullmatch(two, word) and not re2.fullmatch(not_, word))

    if found is not None:
        assert member(found)
    limit = 99 if found is None else len(found)
    assert not [word for word in ["", *SHORT] if len(word) < limit and member(word)]


@given(expressions, st.text("ab.", max_size=2), st.text("ab.", max_size=2), st.sampled_from(["", *SHORT]))
def test_a_quotient_has_the_words_between_a_prefix_and_a_suffix(
    text: str, prefix: str, suffix: str, word: str
) -> None:
    words = LanguageTable()
    between = words.before(words.after(language(words, text), prefix), suffix)

    assert words.holds(between, word) == (re2.fullmatch(text, prefix + word + suffix) is not None)


@given(st.lists(st.text("ab.", max_size=4), max_size=8), st.sampled_from(["", *SHORT]))
def test_a_list_of_names_is_exactly_these(names: list[str], word: str) -> None:
    words = LanguageTable()

    assert words.holds(words.one_of(names), word) == (word in names)


def test_a_proof_that_would_take_too_long_ends_with_too_complicated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_language, "MAX_WORK", 50_000)
    words = LanguageTable()
    never = words.both(language(words, "(.*a.{12})"), language(words, "(.*b.{12})"))  # thousands of states

    with pytest.raises(TooComplicated, match="write simpler ones"):
        words.shortest(never)


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a?){200}a{200}", "(.*a){20}b", "(a+)+b"])
def test_no_expression_makes_matching_slow(text: str) -> None:
    matches = Matcher(lambda words: language(words, text))

    for length in (20, 249):  # exponential engines do not come back from the first
        assert not matches("a" * length + "c")


@given(st.lists(words_of_letters, max_size=30))
def test_a_matcher_whose_cache_is_rebuilt_answers_as_before(names: list[str]) -> None:
    text = r"(.*a.{3}|[a-m]*\.x+)"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(regular_language, "MAX_CACHED_NODES", 10)
        matches = Matcher(lambda words: language(words, text))
        for name in names:
            assert matches(name) == (re2.fullmatch(text, name) is not None)


def test_groups_and_headers_may_have_any_character() -> None:
    wanted = AnyOf(["billing", "team a/.*", "x-.+"])

    assert wanted("billing")
    assert wanted("team a/reports: daily")
    assert wanted("x-ö")
    assert not wanted("billing2")
    with pytest.raises(BadExpression, match="RE2"):
        AnyOf(["a("])

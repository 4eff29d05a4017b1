"""A route: the topics that are copied from one cluster to another, and the names of their copies.

Rules
1. A topic is copied if an entry of `topics` matches it and no entry of `exclude` does. `name_patterns`
   defines entries. An exclusion always wins.
2. Internal topics are copied only if an entry is their exact name; no expression matches them. These are
   internal:

       __*                                      Kafka's own: group offsets, transaction state
       switchyard-*                             Switchyard's control topics, in every region
       T__G__retry_N, __dlq, __merge, __delayed  messages that wait for a workload G of topic T: a copy
                                                would be delivered a second time
       mm2-*.internal, *.checkpoints.internal   MirrorMaker 2's bookkeeping

3. A rename changes a prefix and a suffix around a stem. A topic that does not fit the rename keeps its name,
   so no rename removes a topic from the route.
4. A copy whose name Kafka does not accept (more than 249 characters, "." or "..") is not made; `why_not`
   reports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from app.kernel.job import MAX_TOPIC_CHARS
from app.replicate.model.name_patterns import is_name, language
from app.replicate.model.regular_language import Language, LanguageTable, Matcher

INTERNAL = (
    r"__.*",
    r"switchyard-.*",
    r".+__.+__(retry_\d+|dlq|merge|delayed)",
    r"mm2-.*\.internal",
    r".*\.checkpoints\.internal",
)

TOPIC, CLUSTER = "{topic}", "{cluster}"
RENAME = "give its copy another name by rename.names, or exclude it"  # Kafka does not accept the copy's name
_AFFIX = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)


class BadRename(ValueError):
    """The fault in a rename; what to do."""


def is_topic(name: str) -> bool:
    """Whether Kafka accepts it as a topic name."""
    return is_name(name) and len(name) <= MAX_TOPIC_CHARS and name not in {".", ".."}


@dataclass(frozen=True, slots=True)
class TopicRename:
    """Maps a topic's name at the source to its name at the destination.

    Attributes:
        before: The prefix and suffix of the source name, around a stem of at least one letter.
        after: The prefix and suffix of the copy's name, around the same stem.
        names: Topics with a name of their own at the destination; these come first.
    """

    before: tuple[str, str] = ("", "")
    after: tuple[str, str] = ("", "")
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, before: str = TOPIC, after: str = TOPIC, names: Mapping[str, str] | None = None, *, cluster: str
    ) -> TopicRename:
        """Builds a rename from templates such as "{cluster}.{topic}"; `cluster` is the source's name.

        Raises:
            BadRename: A template has not exactly one {topic}, or characters that no topic name has.
        """
        return cls(_affixes(before, cluster), _affixes(after, cluster), dict(names or {}))

    def __call__(self, topic: str) -> str:
        """The name at the destination, whether Kafka accepts it or not."""
        own = self.names.get(topic)
        if own is not None:
            return own
        (old_prefix, old_suffix), (prefix, suffix) = self.before, self.after
        stem = len(topic) - len(old_prefix) - len(old_suffix)
        if stem < 1 or not topic.startswith(old_prefix) or not topic.endswith(old_suffix):
            return topic
        return f"{prefix}{topic[len(old_prefix) : len(old_prefix) + stem]}{suffix}"

    def fits(self, words: LanguageTable) -> Language:
        """The names that match `before`."""
        prefix, suffix = self.before
        return words.cat(words.literal(prefix), words.some, words.literal(suffix))

    def origin(self, words: LanguageTable, copies: Language) -> Language:
        """Exactly the names whose copies are among `copies`."""
        own = words.one_of(self.names)
        (old_prefix, old_suffix), (prefix, suffix) = self.before, self.after
        stems = words.both(words.before(words.after(copies, prefix), suffix), words.some)
        renamed = words.cat(words.literal(old_prefix), stems, words.literal(old_suffix))
        kept = words.both(copies, words.no(self.fits(words)))
        named = [words.literal(topic) for topic, copy in self.names.items() if words.holds(copies, copy)]
        return words.either(*named, words.both(words.no(own), words.either(renamed, kept)))


def _affixes(template: str, cluster: str) -> tuple[str, str]:
    parts = template.replace(CLUSTER, cluster).split(TOPIC)
    if len(parts) != 2:
        raise BadRename("must name {topic} once; write one like {cluster}.{topic}")
    if not all(_AFFIX.fullmatch(part) for part in parts):
        raise BadRename(
            "has characters that no topic name has; beside {topic} and {cluster} use letters, digits, '.', "
            "'_' and '-'"
        )
    return parts[0], parts[1]


@dataclass(frozen=True)
class Route:
    """The selection and renaming of one route. Built once, queried for every topic, from any thread.

    Attributes:
        source, target: The clusters that it copies from and to.
        topics, exclude: Names and expressions.

    Raises:
        BadExpression: An entry is no valid expression.
        TooComplicated: The entries together are too complicated.
    """

    name: str
    source: str
    target: str
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    rename: TopicRename = TopicRename()

    def __post_init__(self) -> None:
        _ = self._excluded, self._matched  # raises now if entries are wrong

    def destination(self, topic: str) -> str | None:
        """The name of the topic's copy; None if the route does not copy it."""
        if topic in self.names:
            if self._excluded(topic):
                return None
        elif not self._matched(topic):
            return None
        copy = self.rename(topic)
        return copy if is_topic(copy) else None

    def named_copies(self) -> list[str]:
        """The copies of the topics that the route names in `topics` or in its rename."""
        copies = {self.destination(topic) for topic in self.names | self.rename.names.keys()}
        return sorted(copy for copy in copies if copy is not None)

    def means(self, topic: str) -> bool:
        """Whether an entry of `topics` matches, even if the topic is excluded or internal."""
        return topic in self.names or self._meant(topic)

    def why_not(self, topic: str) -> str | None:
        """Why the route does not copy the topic, as text; None if it does. Cheap after the first call."""
        if self.destination(topic) is not None:
            return None
        if self._excluded(topic):
            return f"excluded by '{self._excluding(topic)}'"
        if topic not in self.names and not self._meant(topic):
            return "no entry of topics matches it"
        if topic not in self.names and not self._matched(topic):
            return "internal: only an entry that is its name matches it"
        copy = self.rename(topic)
        why = f"which Kafka does not accept ({len(copy)} characters, at most {MAX_TOPIC_CHARS})"
        return f"its copy would be called {copy!r}, {why}; {RENAME}"

    def _excluding(self, topic: str) -> str:
        """The first entry that excludes the topic."""
        for entry, matcher in self._excluders:
            if entry == topic or (matcher is not None and matcher(topic)):
                return entry
        raise AssertionError("called only for excluded topics")

    @cached_property
    def names(self) -> frozenset[str]:
        """The entries of `topics` that are names."""
        return frozenset(filter(is_name, self.topics))

    def by_pattern(self, words: LanguageTable) -> Language:
        """The topics that the route copies because of an expression."""
        return words.both(
            self.patterns(words), words.some, words.no(_internal(words)), words.no(self._exclusion(words))
        )

    def domain(self, words: LanguageTable) -> Language:
        """All topic names that the route would copy, whether Kafka accepts the copy's name or not."""
        named = words.one_of(self.names)
        return words.either(self.by_pattern(words), words.both(named, words.no(self._exclusion(words))))

    def patterns(self, words: LanguageTable) -> Language:
        """The names that the expressions match, including internal and excluded ones."""
        return words.either(*(language(words, entry) for entry in self.topics if not is_name(entry)))

    def _exclusion(self, words: LanguageTable) -> Language:
        expressions = (language(words, entry) for entry in self.exclude if not is_name(entry))
        return words.either(words.one_of(filter(is_name, self.exclude)), *expressions)

    @cached_property
    def _meant(self) -> Matcher:
        return Matcher(self.patterns)

    @cached_property
    def _matched(self) -> Matcher:
        return Matcher(self.by_pattern)

    @cached_property
    def _excluded(self) -> Matcher:
        return Matcher(self._exclusion)

    @cached_property
    def _excluders(self) -> list[tuple[str, Matcher | None]]:
        """The entries of `exclude`, each expression with its matcher."""
        return [
            (entry, None if is_name(entry) else Matcher(partial(language, text=entry)))
            for entry in self.exclude
        ]


def _internal(words: LanguageTable) -> Language:
    return words.either(*(language(words, entry) for entry in INTERNAL))

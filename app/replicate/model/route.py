"""A route: which topics of one cluster are copied to another, and under which names.

Rules
1. A topic is copied when an entry of `topics` means it and none of `exclude` does (`name_patterns` says
   what an entry is). An exclusion always wins.
2. Internal topics are copied only when an entry is their name; no expression means them. They are

       __*                                      Kafka's own: group offsets, transaction state
       switchyard-*                             Switchyard's control topics, in every region
       T__G__retry_N, __dlq, __merge, __delayed  what waits for a workload G of topic T: a copy of it
                                                would be delivered once more, elsewhere
       mm2-*.internal, *.checkpoints.internal   MirrorMaker 2's bookkeeping

3. A rename changes what stands before and behind a stem. A topic that it does not fit keeps its name, so
   that no rename makes a topic vanish from the route.
4. A name that Kafka would not take (more than 249 characters, "." or "..") is no destination; `why_not` says
   so.
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
RENAME = "name its copy otherwise by rename.names, or exclude it"  # where Kafka does not take the copy's name
_AFFIX = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)


class BadRename(ValueError):
    """What is wrong with it; what to do."""


def is_topic(name: str) -> bool:
    """Whether Kafka takes it for a topic's name."""
    return is_name(name) and len(name) <= MAX_TOPIC_CHARS and name not in {".", ".."}


@dataclass(frozen=True, slots=True)
class TopicRename:
    """From a topic's name at the source to its name at the destination.

    Attributes:
        before: what a name must begin and end with; between them, a stem of at least one letter.
        after: what its copy begins and ends with instead, around the same stem.
        names: topics with a name of their own at the destination; these come first.
    """

    before: tuple[str, str] = ("", "")
    after: tuple[str, str] = ("", "")
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, before: str = TOPIC, after: str = TOPIC, names: Mapping[str, str] | None = None, *, cluster: str
    ) -> TopicRename:
        """Of templates such as "{cluster}.{topic}"; `cluster` is the source's name.

        Raises:
            BadRename: a template has not exactly one {topic}, or something that no topic's name has.
        """
        return cls(_affixes(before, cluster), _affixes(after, cluster), dict(names or {}))

    def __call__(self, topic: str) -> str:
        """The name at the destination, whether Kafka takes it or not."""
        own = self.names.get(topic)
        if own is not None:
            return own
        (old_prefix, old_suffix), (prefix, suffix) = self.before, self.after
        stem = len(topic) - len(old_prefix) - len(old_suffix)
        if stem < 1 or not topic.startswith(old_prefix) or not topic.endswith(old_suffix):
            return topic
        return f"{prefix}{topic[len(old_prefix) : len(old_prefix) + stem]}{suffix}"

    def fits(self, words: LanguageTable) -> Language:
        """The names that `before` fits."""
        prefix, suffix = self.before
        return words.cat(words.literal(prefix), words.some, words.literal(suffix))

    def origin(self, words: LanguageTable, copies: Language) -> Language:
        """The names whose copies are among `copies`: exactly those."""
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
            "not part of a topic's name; beside {topic} and {cluster} use letters, digits, '.', '_' and '-'"
        )
    return parts[0], parts[1]


@dataclass(frozen=True)
class Route:
    """See the module; made once, asked for every topic there is. Safe to ask from any thread.

    Attributes:
        name: its own.
        source, target: the clusters it copies from and to.
        topics, exclude: names and expressions.
        rename: of the copies.

    Raises:
        BadExpression: an entry is no expression.
        TooComplicated: the entries are, all together.
    """

    name: str
    source: str
    target: str
    topics: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    rename: TopicRename = TopicRename()

    def __post_init__(self) -> None:
        _ = self._excluded, self._matched  # whatever is wrong with the entries is said now

    def destination(self, topic: str) -> str | None:
        """The name of the topic's copy; None when the route does not copy it."""
        if topic in self.names:
            if self._excluded(topic):
                return None
        elif not self._matched(topic):
            return None
        copy = self.rename(topic)
        return copy if is_topic(copy) else None

    def named_copies(self) -> list[str]:
        """The copies of topics that it names, by themselves or in its rename."""
        copies = {self.destination(topic) for topic in self.names | self.rename.names.keys()}
        return sorted(copy for copy in copies if copy is not None)

    def means(self, topic: str) -> bool:
        """Whether an entry of `topics` does, be it excluded or internal."""
        return topic in self.names or self._meant(topic)

    def why_not(self, topic: str) -> str | None:
        """Why the topic is not copied, in words; None when it is. Cheap, once it was asked for one."""
        if self.destination(topic) is not None:
            return None
        if self._excluded(topic):
            return f"excluded by '{self._excluding(topic)}'"
        if topic not in self.names and not self._meant(topic):
            return "no entry of topics means it"
        if topic not in self.names and not self._matched(topic):
            return "internal: only an entry that is its name means it"
        return f"its copy would be called {self.rename(topic)!r}, which Kafka does not take"

    def _excluding(self, topic: str) -> str:
        """The first entry that excludes it."""
        for entry, matcher in self._excluders:
            if entry == topic or (matcher is not None and matcher(topic)):
                return entry
        raise AssertionError("only asked of what is excluded")

    @cached_property
    def names(self) -> frozenset[str]:
        """The entries of `topics` that are names."""
        return frozenset(filter(is_name, self.topics))

    def by_pattern(self, words: LanguageTable) -> Language:
        """The topics that it copies because of an expression."""
        return words.both(
            self.patterns(words), words.some, words.no(_internal(words)), words.no(self._exclusion(words))
        )

    def domain(self, words: LanguageTable) -> Language:
        """All topics that it copies, if there were such; whether Kafka takes the copy's name is not asked."""
        named = words.one_of(self.names)
        return words.either(self.by_pattern(words), words.both(named, words.no(self._exclusion(words))))

    def patterns(self, words: LanguageTable) -> Language:
        """What its expressions mean, also what is internal or excluded."""
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
        """Entries of `exclude`; those that are no names with what tells the topics that they mean."""
        return [
            (entry, None if is_name(entry) else Matcher(partial(language, text=entry)))
            for entry in self.exclude
        ]


def _internal(words: LanguageTable) -> Language:
    return words.either(*(language(words, entry) for entry in INTERNAL))

"""Computes with sets of names as regular languages: emptiness, intersection, and the effect of a rename.

The loop proof must hold for names that do not exist yet, so it computes with the patterns themselves. A
language is a node in a `LanguageTable`. Equal terms have equal node numbers, and derivatives are cached.

    derivative of L by c = the rest of the words of L that begin with c        (Brzozowski 1964)

Terms have union, intersection and complement, so an exclusion is just a term. Derivatives match a word and
find a shortest word. Unions are sets of their parts (Antimirov 1996), so an expression of n letters has at
most n + 1 parts in any state. Matching therefore takes time linear in the name for every expression. Classes
of letters follow Owens, Reppy and Turon (2009).

The letters are those of Kafka's topic names; a set of letters is an int with one bit for each.
"""

from __future__ import annotations

import string
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix

LETTERS = (
    string.ascii_lowercase + string.digits + string.ascii_uppercase + "-._"
)  # examples use the first possible letter
BIT = {letter: 1 << index for index, letter in enumerate(LETTERS)}
ALL = (1 << len(LETTERS)) - 1
MAX_NODES = 200_000  # some hundred megabytes
MAX_WORK = 2_000_000  # steps for one answer; they take a second or two
MAX_CACHED_NODES = 50_000  # of a matcher, beyond its language's own: some ten megabytes

Language = int  # a node of one `LanguageTable`; meaningless in another
_CHARS, _EMPTY, _CAT, _EITHER, _BOTH, _NOT, _STAR = range(7)


class TooComplicated(ValueError):
    """Nothing can be proved about the patterns with reasonable effort."""


class LanguageTable:
    """The terms, each once. All methods take and return nodes of the same table."""

    def __init__(self) -> None:
        self.max_nodes, self.max_work = MAX_NODES, MAX_WORK
        self._work = 0
        self._terms: list[tuple[int, ...]] = []
        self._nodes: dict[tuple[int, ...], Language] = {}
        self._nullable: list[bool] = []
        self._derivatives: dict[tuple[Language, int], Language] = {}
        self._classes: dict[Language, tuple[int, ...]] = {}
        self._reversed: dict[Language, Language] = {}
        self.never = self._node(_CHARS, 0)  # no word at all
        self.empty = self._node(_EMPTY)  # the empty word alone
        self.every = self._node(_STAR, self._node(_CHARS, ALL))  # all words
        self.some = self.cat(self.chars(ALL), self.every)  # all but the empty one

    # -- making ------------------------------------------------------------------------------------

    def chars(self, letters: int) -> Language:
        """The words of one letter out of a set."""
        return self._node(_CHARS, letters)

    def literal(self, text: str) -> Language:
        """Exactly `text`; nothing if it has a letter that no name has."""
        return self.cat(*(self.chars(BIT.get(letter, 0)) for letter in text))

    def one_of(self, names: Iterable[str]) -> Language:
        """Exactly these names, as a tree by their first letters."""
        by_first: dict[str, list[str]] = {}
        prefix = commonprefix(listed := list(names))  # noqa: RUF071 - of text, not of paths
        for name in listed:
            by_first.setdefault(name[len(prefix) :][:1], []).append(name[len(prefix) + 1 :])
        branches = (
            self.cat(self.literal(first), self.one_of(rest)) if first else self.empty
            for first, rest in by_first.items()
        )  # fmt: skip
        return self.cat(self.literal(prefix), self.either(*branches))

    def cat(self, *parts: Language) -> Language:
        """One part after the other, held as head and tail, so that derivatives share their tails."""
        if self.never in parts:
            return self.never
        node = parts[-1] if parts else self.empty
        for part in reversed(parts[:-1]):
            for head in reversed(self._sequence(part)):
                if node == self.empty:
                    node = head
                elif head != self.empty:
                    node = self._node(_CAT, head, node)
        return node

    def either(self, *parts: Language) -> Language:
        """Union."""
        flat = self._flat(_EITHER, parts) - {self.never}
        chars = [node for node in flat if self._terms[node][0] == _CHARS]
        if len(chars) > 1:
            letters = 0
            for node in chars:
                letters |= self._terms[node][1]
            flat = flat.difference(chars) | {self.chars(letters)}
        if self.every in flat or any(self._opposite(node) in flat for node in flat):
            return self.every
        return self._joined(_EITHER, flat, self.never)

    def both(self, *parts: Language) -> Language:
        """Intersection."""
        flat = self._flat(_BOTH, parts) - {self.every}
        if self.never in flat or any(self._opposite(node) in flat for node in flat):
            return self.never
        return self._joined(_BOTH, flat, self.every)

    def no(self, part: Language) -> Language:
        """Complement."""
        if part in (self.never, self.every):
            return self.every if part == self.never else self.never
        kind, *rest = self._terms[part]
        return rest[0] if kind == _NOT else self._node(_NOT, part)

    def star(self, part: Language) -> Language:
        """The part repeated any number of times, including none."""
        if part in (self.never, self.empty):
            return self.empty
        return part if self._terms[part][0] == _STAR else self._node(_STAR, part)

    def next_question(self) -> None:
        """Starts counting the steps of a new answer."""
        self._work = 0

    # -- asking ------------------------------------------------------------------------------------

    def nullable(self, node: Language) -> bool:
        """Whether the empty word is in the language."""
        return self._nullable[node]

    def holds(self, node: Language, word: str) -> bool:
        """Whether `word` is in the language."""
        return self._nullable[self.after(node, word)]

    def after(self, node: Language, prefix: str) -> Language:
        """The rest of the words that begin with `prefix`: the left quotient."""
        for letter in prefix:
            node = self.derivative(node, BIT.get(letter, 0))
        return node

    def before(self, node: Language, suffix: str) -> Language:
        """The front of the words that end with `suffix`: the right quotient."""
        if not suffix:
            return node
        return self.reverse(self.after(self.reverse(node), suffix[::-1]))

    def shortest(self, node: Language) -> str | None:
        """One of the language's shortest words; None: it has no words.

        Raises:
            TooComplicated: The language has too many states to visit all.
        """
        came: dict[Language, tuple[Language, str]] = {node: (node, "")}
        queue = [node]
        for state in queue:  # grows while the loop runs
            if self._nullable[state]:
                word = []
                while state != node:
                    state, letter = came[state]  # noqa: PLW2901 - walks the path back
                    word.append(letter)
                return "".join(reversed(word))
            for letters in self._classes_of(state):
                bit = letters & -letters  # any letter stands for its class
                following = self.derivative(state, bit)
                if following != self.never and following not in came:
                    came[following] = (state, LETTERS[bit.bit_length() - 1])
                    queue.append(following)
        return None

    def derivative(self, node: Language, bit: int) -> Language:
        """The rest of the words that begin with the letter. Without a letter (0): nothing."""
        if not bit:
            return self.never
        known = self._derivatives.get((node, bit))
        if known is None:
            known = self._derivatives[node, bit] = self._derive(node, bit)
        return known

    def reverse(self, node: Language) -> Language:
        """The words read backwards."""
        known = self._reversed.get(node)
        if known is None:
            kind, *parts = self._terms[node]
            if kind == _CAT:
                known = self.cat(*(self.reverse(part) for part in reversed(self._sequence(node))))
            elif kind in (_EITHER, _BOTH):
                known = (self.either if kind == _EITHER else self.both)(*map(self.reverse, parts))
            elif kind in (_NOT, _STAR):
                known = (self.no if kind == _NOT else self.star)(self.reverse(parts[0]))
            else:
                known = node
            self._reversed[node] = known
        return known

    @property
    def size(self) -> int:
        return len(self._terms)

    # -- within ------------------------------------------------------------------------------------

    def _node(self, *term: int) -> Language:
        node = self._nodes.get(term)
        if node is None:
            if len(self._terms) >= self.max_nodes or self._work > self.max_work:
                raise TooComplicated("the patterns are too complicated together; write simpler ones")
            node = self._nodes[term] = len(self._terms)
            self._terms.append(term)
            self._nullable.append(self._has_empty(term))
        return node

    def _has_empty(self, term: tuple[int, ...]) -> bool:
        kind, *parts = term
        if kind in (_CAT, _BOTH):
            return all(self._nullable[part] for part in parts)
        if kind == _EITHER:
            return any(self._nullable[part] for part in parts)
        if kind == _NOT:
            return not self._nullable[parts[0]]
        return kind in (_EMPTY, _STAR)

    def _opposite(self, node: Language) -> Language | None:
        term = self._terms[node]
        return term[1] if term[0] == _NOT else self._nodes.get((_NOT, node))

    def _flat(self, kind: int, parts: Iterable[Language]) -> set[Language]:
        flat: set[Language] = set()
        for part in parts:
            term = self._terms[part]
            self._work += len(term)
            flat.update(term[1:] if term[0] == kind else (part,))
        return flat

    def _joined(self, kind: int, parts: set[Language], none: Language) -> Language:
        return self._node(kind, *sorted(parts)) if len(parts) > 1 else next(iter(parts), none)

    def _sequence(self, node: Language) -> list[Language]:
        found = []
        while self._terms[node][0] == _CAT:
            found.append(self._terms[node][1])
            node = self._terms[node][2]
        self._work += len(found)
        return [*found, node]

    def _derive(self, node: Language, bit: int) -> Language:
        kind, *parts = self._terms[node]
        if kind == _CHARS:
            return self.empty if parts[0] & bit else self.never
        if kind == _EMPTY:
            return self.never
        if kind in (_EITHER, _BOTH):
            return (self.either if kind == _EITHER else self.both)(*(self.derivative(p, bit) for p in parts))
        if kind == _NOT:
            return self.no(self.derivative(parts[0], bit))
        if kind == _STAR:
            return self.either(*self._then(self.derivative(parts[0], bit), node))
        found: list[Language] = []
        while self._terms[node][0] == _CAT:
            _, head, tail = self._terms[node]
            found += self._then(self.derivative(head, bit), tail)
            if not self._nullable[head]:
                return self.either(*found)
            node = tail
        return self.either(*found, self.derivative(node, bit))

    def _then(self, first: Language, rest: Language) -> list[Language]:
        """`first` followed by `rest`, as the parts of a union."""
        term = self._terms[first]
        return [self.cat(part, rest) for part in (term[1:] if term[0] == _EITHER else (first,))]

    def _classes_of(self, node: Language) -> tuple[int, ...]:
        """Partitions the letters into classes that `node` treats alike."""
        known = self._classes.get(node)
        if known is None:
            kind, *parts = self._terms[node]
            if kind == _CHARS:
                known = tuple(letters for letters in (parts[0], ALL ^ parts[0]) if letters)
            elif kind == _EMPTY:
                known = (ALL,)
            else:
                known = self._refined(self._first_of(node) if kind == _CAT else parts)
            self._classes[node] = known
        return known

    def _first_of(self, node: Language) -> list[Language]:
        """The parts of a sequence to which a word's first letter may belong."""
        found = []
        for part in self._sequence(node):
            found.append(part)
            if not self._nullable[part]:
                break
        return found

    def _refined(self, parts: Sequence[Language]) -> tuple[int, ...]:
        classes: tuple[int, ...] = (ALL,)
        for part in parts:
            if len(classes) == len(LETTERS):
                break
            finer = self._classes_of(part)
            classes = tuple(both for one in classes for other in finer if (both := one & other))
        return classes


class Matcher:
    """Whether names are in a language. It fills a table of transitions as names come. Thread-safe.

    Raises:
        TooComplicated: The language alone takes more than `MAX_NODES` terms.
    """

    def __init__(self, build: Callable[[LanguageTable], Language]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._reset()

    def __call__(self, name: str) -> bool:
        table, words, state = self._now
        for letter in name:
            following = table[state].get(letter)
            if following is None:
                return self._slowly(name)
            state = following
        return words.nullable(state)

    def _reset(self) -> None:
        words = LanguageTable()
        state = self._build(words)
        words.max_nodes = words.max_work = sys.maxsize  # from now on a cache, rebuilt when it is full
        self._full = words.size + MAX_CACHED_NODES
        self._now: tuple[dict[Language, dict[str, Language]], LanguageTable, Language] = (
            {state: {}},
            words,
            state,
        )

    def _slowly(self, name: str) -> bool:
        with self._lock:
            if self._now[1].size > self._full:
                self._reset()
            table, words, state = self._now
            for letter in name:
                if letter not in BIT:
                    return False
                following = words.derivative(state, BIT[letter])
                table.setdefault(following, {})  # before another thread can reach this state
                table[state][letter] = following
                state = following
            return words.nullable(state)

"""A kind of definition, as its room describes it for the registry (`app.definitions.registry`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from app.config.definition_base import Definition
from app.config.problems import ConfigProblem, Document
from app.config.receiver_rules import NO_RULES, ReceiverRules
from app.failover.topology import Layout
from app.replicate.model.copy_graph import ALONE, OtherRegions

D = TypeVar("D", bound=Definition)


class KnownPlaces(NamedTuple):
    """What definitions may name; None: not known, so it is not checked."""

    clusters: Collection[str] | None = None
    layout: Layout | None = None
    receivers: ReceiverRules = NO_RULES


class FieldChange(NamedTuple):
    """A field's old and new value (None: absent)."""

    field: str
    old: object
    new: Any


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The change of one definition: create, update, delete or unchanged.

    `definition`: the new one; None for a deletion.
    """

    action: str
    kind: DefinitionKind[Any]
    key: str
    fields: tuple[FieldChange, ...] = ()
    definition: Definition | None = None

    @property
    def name(self) -> str:
        """The definition's name for people."""
        return f"{self.kind.title}{self.key}"


@dataclass(frozen=True, slots=True)
class PlanScope:
    """The circumstances of a plan, as in `app.definitions.plan.plan`."""

    prune: bool = False
    other_regions: OtherRegions = ALONE
    is_local: bool = True
    clusters: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class PlannedKind(Generic[D]):
    """A plan's changes of one kind. Definitions that the files define several times are left out.

    Attributes:
        current: The definitions in force, by key.
        wanted: The definitions of the files, by key.
        changes: By key; without deletions.
    """

    scope: PlanScope
    current: Mapping[str, D]
    wanted: Mapping[str, D]
    changes: Mapping[str, DefinitionChange]

    @property
    def kept(self) -> list[D]:
        """The current definitions that stay as they are, because nothing replaces or deletes them."""
        if self.scope.prune:
            return []
        return [one for key, one in sorted(self.current.items()) if key not in self.wanted]


class PlanNotes(NamedTuple):
    """A plan's conflicts, which forbid it, and its warnings."""

    conflicts: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DefinitionKind(Generic[D]):
    """A kind of definition.

    Attributes:
        name: The value of its field `kind`.
        model: The class of its definitions.
        check: All checks that no single field makes. The definition is None if a field is wrong.
        api: The path of its definitions in the API.
        list_api: The path of their list, if that is another.
        prefix: The beginning of its keys in the control log.
        title: Words before a key, for people.
        named_by: The fields of `metadata` that identify a definition.
        rules: Conflicts and warnings of a plan.
        check_together: Checks of all definitions of some files.
        are_planned_together: A conflict of one definition may end with the changes of others.
        may_take_over: A new one may be deployed although its group has other consumers.
        is_listed_whole: The API's list always has the definitions, not only with `?definitions=true`.
        deletes_first: New definitions may depend on the deletion of others.
    """

    name: str
    model: type[D]
    check: Callable[[Document, D | None, KnownPlaces], Iterable[ConfigProblem]]
    api: str
    list_api: str = ""
    prefix: str = ""
    title: str = ""
    named_by: tuple[str, ...] = ("name",)
    rules: Callable[[PlannedKind[D]], PlanNotes] = lambda _: PlanNotes()
    check_together: Callable[[Sequence[tuple[Document, D]]], Iterable[ConfigProblem]] = lambda _: ()
    are_planned_together: bool = False
    may_take_over: bool = False
    is_listed_whole: bool = True
    deletes_first: bool = True

    def path(self, key: str) -> str:
        """The API's path of a definition."""
        name = key.removeprefix(self.prefix)
        parts = name.split("/", 1) if len(self.named_by) > 1 else [name]
        return "/".join([self.api, *(quote(part, safe="") for part in parts)])

    def read(self, data: Any) -> D:
        """The definition from its canonical form. Raises ValueError: it cannot be read."""
        return self.model.from_wire(data)

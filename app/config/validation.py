"""pydantic's errors as problems: with their place in the file, in words for people, with a remedy.

The models take part by raising `ValueError("what is wrong; what to do")` in their validators.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from app.config.problems import Document, Path_, Problem, suggest

# Fields whose value may be a secret, or what somebody took for the place of one.
HIDDEN = {"password", "username", "secret", "token", "key", "security"}

_WORDS = {
    "missing": ("missing", "add it"),
    "string_type": ("not text", "put it in quotes"),
    "bool_type": ("not true or false", "write true or false"),
    "bool_parsing": ("not true or false", "write true or false"),
    "int_type": ("not a whole number", "write one without quotes, such as 100"),
    "int_from_float": ("not a whole number", "write one without quotes, such as 100"),
    "float_type": ("not a number", "write one without quotes, such as 100 or 0.5"),
    "finite_number": ("not a finite number", "write one such as 100 or 0.5"),
    "tuple_type": ("not a list", "write a list: [one, another], or lines that begin with '- '"),
    "string_too_short": ("empty", "write something, or leave the field out"),
}

_M = TypeVar("_M", bound=BaseModel)


def check(model: type[_M], document: Document, data: Any = None) -> tuple[_M | None, list[Problem]]:
    """The model of the document's data (or of `data` in its stead), or everything that is wrong with it."""
    try:
        return model.model_validate(document.data if data is None else data), []
    except ValidationError as error:
        return None, [_problem(model, document, entry) for entry in error.errors(include_url=False)]


def _problem(model: type[BaseModel], document: Document, entry: Any) -> Problem:
    kind, path, limits = entry["type"], tuple(entry["loc"]), entry.get("ctx", {})
    name, value = str(path[-1]) if path else "", entry["input"]
    hidden = kind in {"missing", "extra_forbidden"} or name in HIDDEN
    if kind == "extra_forbidden":
        message, remedy = "unknown field", suggest(name, _fields_at(model, path[:-1]))
    elif kind == "literal_error":
        choices = [choice.strip(" '") for choice in limits["expected"].replace(" or ", ", ").split(",")]
        message = f"must be {' or '.join(choices)}"
        remedy = suggest(str(value), choices).replace("known here", "use one of")
    elif kind in {"model_type", "model_attributes_type", "dict_type"}:
        fields = ", ".join(_fields_at(model, path))
        message, remedy = "not a mapping", f"write fields under it, of these: {fields}"
    elif kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        (limit,) = limits.values()
        words = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below"}
        message = f"must be {words.get(kind, 'at most')} {limit}"
        remedy = "choose a " + ("larger" if kind.startswith("greater") else "smaller") + " number"
    elif kind in {"too_long", "string_too_long"}:
        message, remedy = f"longer than {limits['max_length']}", "shorten it"
    elif kind in _WORDS:
        message, remedy = _WORDS[kind]
    else:  # value_error: the words of our own validators
        message, _, remedy = entry["msg"].removeprefix("Value error, ").partition("; ")
    problem = document.problem(path, message, remedy, None if hidden else value)
    if kind != "extra_forbidden":
        return problem
    line, column = document.position(path, key=True)
    return Problem(message, remedy, problem.field, "", document.file, line, column)


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    """The names, as they are written, of the fields of the model at `path`."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is not None and isinstance(part, str):
            fields = current.model_fields.items()
            current = next((model_in(f.annotation) for n, f in fields if part == (f.alias or n)), None)
    return [] if current is None else [field.alias or name for name, field in current.model_fields.items()]


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Model`, `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := model_in(arg)) is not None), None)

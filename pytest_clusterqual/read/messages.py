"""What is said about a value that is not what the project file may hold."""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from pytest_clusterqual.read.yaml_lines import Where

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "list_type": "a list",
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length} item(s)",
    "literal_error": "{expected}",
}
_PYTHON_QUOTES = re.compile(r"""got '([^'"\\]*)'""")
_LONGEST = 60


def shown(value: object) -> str:
    """Write a value as it would stand in the file, cut to a readable length."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=not value.isprintable())
        return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 4]}..."'
    if isinstance(value, (list, dict)):
        return ("a list" if isinstance(value, list) else "a mapping") if value else f"an empty {_kind(value)}"
    return repr(value)


def _kind(value: object) -> str:
    return "list" if isinstance(value, list) else "mapping"


def dotted(where: Where) -> str:
    """Write a path of keys and list positions as ``fabric.require[2].busbw``."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if re.fullmatch(r"[\w-]+", step) else shown(step))
    return text


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    valid = list(dict.fromkeys(valid))
    close = difflib.get_close_matches(word, valid, n=1)
    return f"{f'did you mean {close[0]}? ' if close else ''}want one of {', '.join(valid)}"


def unknown_key(key: str, valid: Iterable[str]) -> str:
    return f"unknown key; {did_you_mean(key, valid)}"


def translate(model: type[BaseModel], errors: Iterable[ErrorDetails]) -> Iterator[tuple[Where, str]]:
    """Turn what pydantic found wrong with a `model` into (place inside the model, message)."""
    for error in errors:
        where, kind, context = error["loc"], error["type"], error.get("ctx", {})
        if kind == "inconsistent":
            yield from (((*where, *keys), text) for keys, text in context["problems"])
        elif kind == "missing":
            yield where, "the key is missing"
        elif kind == "extra_forbidden":
            yield where, unknown_key(str(where[-1]), keys_of(model, where[:-1]))
        elif kind == "value_error":
            # The words below quote as Python does; in a message about YAML one kind of quotes is enough.
            yield where, _PYTHON_QUOTES.sub(r'got "\1"', str(context["error"]))
        else:
            wanted = _WANTED.get(kind, error["msg"]).format(**context).replace("'", "")
            for python, yaml in (("None", "null"), ("True", "true")):
                wanted = wanted.replace(python, yaml)
            yield where, f"got {shown(error['input'])}, want {wanted}"


def keys_of(model: type[BaseModel], where: Where = ()) -> list[str]:
    """The keys that may stand at `where` inside `model`, as the file spells them."""
    for step in where:
        if isinstance(step, str):
            field = next(f for name, f in model.model_fields.items() if step in (name, f.alias))
            model = next(_models(field.annotation))
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)

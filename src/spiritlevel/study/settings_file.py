"""The configuration of a study as a YAML file, with the line and column of every mistake."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from spiritlevel.errors import ConfigError, MissingDependencyError
from spiritlevel.study.config import StudyConfig, explained

__all__ = ["read_config"]

Keys = tuple[str | int, ...]


def read_config(path: str | Path) -> StudyConfig:
    """Read and check a configuration. Nothing is run and no other file is opened.

    Raises:
        ConfigError: one line for each mistake, ``study.yaml:12:5: measures.0.rho: expected ...``.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"expected the configuration of a study in UTF-8, but {path} cannot be read: {error}; "
            "`spiritlevel study init` writes one"
        ) from error
    content, places = _parse(text, path.name)
    try:
        config = StudyConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_located(error, content, places, path.name)) from error
    return config.placed(path.absolute().parent, places)


def _parse(text: str, name: str) -> tuple[dict[str, Any], dict[Keys, str]]:
    """Plain data, and the place of every key and list item."""
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError(
            "expected the package 'pyyaml' for a study: pip install 'spiritlevel[study]'"
        ) from error
    places: dict[Keys, str] = {}

    def place(mark: Any) -> str:
        return f"{name}:{mark.line + 1}:{mark.column + 1}"

    def walk(node: Any, keys: Keys) -> None:
        places.setdefault(keys, place(node.start_mark))
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                walk(item, (*keys, i))
        if not isinstance(node, yaml.MappingNode):
            return
        seen: dict[str, Any] = {}
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(
                    f"{place(key.start_mark)}: expected each key once, got {key.value!r} again (first in line "
                    f"{seen[key.value].start_mark.line + 1})"
                )
            seen[key.value] = key
            places[(*keys, key.value)] = place(key.start_mark)
            walk(value, (*keys, key.value))

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(f"{where}: expected YAML, but {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: expected YAML, but {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{name}:1:1: expected settings such as 'zoo:' and 'data:', got {type(content).__name__}; "
            "`spiritlevel study init` writes an example"
        )
    walk(node, ())
    return content, places


def _located(error: ValidationError, content: Any, places: Mapping[Keys, str], name: str) -> str:
    """One line for each mistake, in the order of the file."""

    def place(keys: Keys) -> str:
        return places.get(_real(keys, places), f"{name}:1:1") + ": "

    hints = [_hint(tuple(e["loc"])) for e in error.errors(include_url=False) if e["type"] == "extra_forbidden"]
    lines = explained(error, place).splitlines()
    return "\n".join([*lines, *dict.fromkeys(h for h in hints if h)])


def _real(keys: Keys, places: Mapping[Keys, str]) -> Keys:
    """The deepest part of the keys that stands in the file; names of alternatives among them are passed over."""
    found: Keys = ()
    for key in keys:
        if (*found, key) in places:
            found = (*found, key)
    return found


def _hint(keys: Keys) -> str:
    """What a misspelt key may have meant."""
    from_here: Any = StudyConfig
    for key in keys[:-1]:
        if isinstance(key, int):
            continue
        from_here = _inner(from_here, key)
    known = list(from_here.model_fields) if from_here is not None else []
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    if close:
        return f"did you mean {close[0]!r} instead of {keys[-1]!r}?"
    return f"known there: {', '.join(known)}" if known else ""


def _inner(model: Any, key: str) -> Any:
    """The settings below a key."""
    field = None if model is None else model.model_fields.get(key)
    if field is None:
        return model if key in ("GeometrySettings", "RadiusRule") else None
    waiting: list[Any] = [field.annotation]
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        waiting += list(getattr(kind, "__args__", ()))
    return None

"""The base of all typed settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

PACKAGED, CUSTOM = "packaged", "own"


def origin_of_kind(settings: Any) -> str:
    """Return whose the kind of a task or model is: the package's or, as ``my_module:MyTask``, the user's own."""
    kind = settings.get("kind") if isinstance(settings, dict) else getattr(settings, "kind", None)
    return CUSTOM if isinstance(kind, str) and ":" in kind else PACKAGED


@dataclass(frozen=True)
class Unit:
    """The unit of a setting's number."""

    name: str


class Settings(BaseModel):
    """Values read from a configuration: checked when read, unknown names refused, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                error = PydanticCustomError("boolean", f"expected {field_type(field)}")
                details = InitErrorDetails(type=error, loc=(name,), input=value)
                raise ValidationError.from_exception_data(cls.__name__, [details])  # which names the setting
        return values


def field_type(field: FieldInfo) -> str:
    """Return the type of a setting in words, as ``"integer >= 1 or none"``."""
    return _in_words(field.annotation, field.metadata)


def _in_words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = arguments[1:]
        return _in_words(arguments[0], [each for one in inner for each in getattr(one, "metadata", [one])])
    if origin in (Union, UnionType):
        return " or ".join(_in_words(each) for each in arguments)
    if origin is Literal:
        return " or ".join(f"{each}" for each in arguments)
    if origin is tuple:
        return f"{len(arguments)} {_in_words(arguments[0])}s"
    bounds = "".join(
        f", {sign} {getattr(each, bound)}"
        for bound, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        for each in metadata
        if getattr(each, bound, None) is not None
    )
    return _NAMES.get(annotation, str(annotation)) + bounds


_NAMES = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "none", Path: "path"}

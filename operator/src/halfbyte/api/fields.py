"""Field types shared by spec and status. Every string, list and map is bounded: CEL costs stay small."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"


class Struct(BaseModel):
    """Frozen, camelCase on the wire; a field that this version does not know is an error, never silently
    ignored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, alias_generator=to_camel)


def rule(expression: str, message: str, **more: str) -> dict[str, str]:
    """One entry of ``x-kubernetes-validations``; ``more`` may hold messageExpression or reason."""
    return {"rule": expression, "message": message, **more}


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """``json_schema_extra`` of a model or field that carries CEL rules."""
    return {"x-kubernetes-validations": list(entries)}


def atomic() -> dict[str, Any]:
    """``json_schema_extra`` of a list that is replaced as a whole."""
    return {"x-kubernetes-list-type": "atomic"}


def unique() -> dict[str, Any]:
    """``json_schema_extra`` of a list without order and without duplicates."""
    return {"x-kubernetes-list-type": "set"}


def keyed(*keys: str) -> dict[str, Any]:
    """``json_schema_extra`` of a list of objects that the keys identify."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Decimal = Annotated[str, Field(max_length=16, pattern=r"^[0-9]{1,6}(\.[0-9]{1,8})?$")]
Short = Annotated[str, Field(max_length=64)]
Name = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
Message = Annotated[str, Field(max_length=32768)]
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]

Quantity = Annotated[
    str,
    Field(max_length=32, pattern=QUANTITY),
]
LooseQuantity = Annotated[
    str | int,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": QUANTITY}),
]
"""A quantity that may be written without quotes (``cpu: 4``)."""


def int_or_auto(minimum: int, maximum: int) -> Any:
    """The type of a field that is ``Auto`` or an integer within bounds."""
    return Annotated[
        Annotated[int, Field(ge=minimum, le=maximum)] | Literal["Auto"],
        WithJsonSchema(
            {
                "x-kubernetes-int-or-string": True,
                "maxLength": 16,
                **rules(
                    rule(
                        f"type(self) == int ? self >= {minimum} && self <= {maximum} : self == 'Auto'",
                        f"must be Auto or an integer from {minimum} to {maximum}",
                    )
                ),
            }
        ),
    ]

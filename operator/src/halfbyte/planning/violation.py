"""A reason not to go on, as data: which decision it stops is up to the caller."""

from dataclasses import dataclass

from halfbyte.api.conditions import Reason


@dataclass(frozen=True, slots=True)
class Violation:
    """``terminal`` stops until a person changes something in the model; otherwise the cluster is looked at
    again.
    """

    reason: Reason
    message: str
    terminal: bool

    @classmethod
    def of(cls, reason: Reason, message: str) -> "Violation":
        """Terminal or not as the reason says."""
        return cls(reason, message, reason.terminal)

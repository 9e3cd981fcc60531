"""A stand-in for a Hugging Face hub, for tests and for clusters without one. Not a real hub: see `server`."""

from .server import FakeHub, Fault, Repo

__all__ = ["FakeHub", "Fault", "Repo"]

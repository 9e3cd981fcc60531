"""Builders of Kubernetes objects: pure, deterministic, plain dicts. A hash of the content is an annotation."""

"""Builders of Kubernetes objects: pure, deterministic, plain dicts with a hash of their content."""

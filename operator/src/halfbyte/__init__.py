"""Halfbyte: a Kubernetes operator for quantized model deployments.

Layers: api <- planning <- adapters <- runtime and cli (an arrow means "is imported by").
"""

__version__ = "0.1.0"

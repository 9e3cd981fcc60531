"""The words of the domain: spec and status models, condition types, labels, and the CRD made from them.

May import: pydantic and the standard library. Must not import: planning, adapters, runtime, any client.
"""

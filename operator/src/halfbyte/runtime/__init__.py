"""Wiring: Kopf watches and enqueues keys, the queue feeds the reconciler, probes and metrics tell how.

May import everything but ``halfbyte.cli``. Nothing imports it.
"""

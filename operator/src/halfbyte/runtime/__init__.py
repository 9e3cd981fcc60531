"""Wiring: Kopf watches and enqueues keys, the queue feeds the reconciler, probes and metrics tell how it goes.

May import everything but ``halfbyte.cli``; nothing imports it.
"""

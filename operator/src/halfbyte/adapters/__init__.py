"""One outside system per file. ``gather`` is the only reader and ``execute`` the only writer of a reconcile.

May import: ``halfbyte.planning``, ``halfbyte.api`` and client libraries.
Must not import: ``halfbyte.runtime``, ``halfbyte.cli``, kopf.
"""

"""Every decision, as pure functions: ``plan(snapshot, now, settings) -> Plan``.

May import: ``halfbyte.api`` and pure standard library modules. Must not import: asyncio, os, time, logging,
random, any client.
"""

"""``kubectl halfbyte``: what the planner decides, read by a person.

May import: adapters, planning, api. Must not import: ``halfbyte.runtime``, kopf.
"""

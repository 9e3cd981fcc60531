"""The program of Halfbyte's Jobs: one stage a run, one task file in, one JSON result out.

``inspect`` starts in a fraction of a second because nothing on its path imports torch; keep it so.
"""

__version__ = "0.1.0"

"""The tutorial's own commands, as they stand on the page."""

from __future__ import annotations

import pytest

from support.markdown import ROOT
from support.tutorial import run


@pytest.mark.usefixtures("node")
@pytest.mark.timeout(3600)
def test_every_command_of_the_tutorial_works() -> None:
    run(ROOT / "docs" / "tutorial.md", timeout=3600)

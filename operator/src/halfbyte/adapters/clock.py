"""The machine's clocks."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """``halfbyte.adapters.gateway.Clock`` of the process."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def micro_time(moment: datetime) -> str:
    """A moment in UTC as Kubernetes' MicroTime."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

# SPDX-License-Identifier: BSD-3-Clause
class SchedulerPlugin:
    name: str
    async def close(self) -> None: ...

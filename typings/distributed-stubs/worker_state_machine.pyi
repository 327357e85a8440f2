# SPDX-License-Identifier: BSD-3-Clause
class RetryBusyWorkerEvent:
    worker: str
    stimulus_id: str
    def __init__(self, *, worker: str, stimulus_id: str) -> None: ...

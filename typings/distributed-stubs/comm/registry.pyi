# SPDX-License-Identifier: BSD-3-Clause
class Backend: ...

backends: dict[str, Backend]

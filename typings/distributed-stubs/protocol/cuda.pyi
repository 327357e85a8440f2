# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

cuda_serialize: Any
cuda_deserialize: Any

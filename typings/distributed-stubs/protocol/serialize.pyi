# SPDX-License-Identifier: BSD-3-Clause
from typing import Any

dask_serialize: Any
dask_deserialize: Any
msgpack_decode_default: Any

class Serialize:
    data: Any

# SPDX-License-Identifier: BSD-3-Clause
"""distributed-ucxx's names, over weft's ``ucx://``, for programs that import them.

Most programs do not need this: ``ucx://`` is weft's in every Dask process, and ``weft.dask.config`` reads
``distributed-ucxx.environment``. There is no ``ucxx://``.
"""

from weft.compat.distributed_ucxx import config, ucxx
from weft.compat.distributed_ucxx.ucxx import UCXXBackend

config.setup_config()

#: The emulated version of distributed-ucxx.
__version__ = "0.52.0"
__git_commit__ = ""

__all__ = ["UCXXBackend", "__git_commit__", "__version__", "config", "ucxx"]

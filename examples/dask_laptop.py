# SPDX-License-Identifier: BSD-3-Clause
# %% [markdown]
# # Dask on one machine over `ucx://`
#
# The protocol is all that changes. Workers of one host map each other's arrays instead of copying them.

# %%
import numpy as np
from dask.distributed import Client, LocalCluster

import weft.dask


# %%
def main() -> None:
    with (
        LocalCluster(protocol="ucx", n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        left, right = sorted(client.nthreads())
        made = client.submit(np.arange, 4_000_000.0, workers=[left])
        total = client.submit(np.sum, made, workers=[right])  # the right worker maps the left one's pages
        print(f"sum: {total.result():.0f}")
        print(weft.dask.transports(client))  # messages, bytes and bandwidth by pair and wire


# %% [markdown]
# Worker processes import this file, so a script needs the guard.

# %%
if __name__ == "__main__":
    main()

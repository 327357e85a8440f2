# SPDX-License-Identifier: BSD-3-Clause
from types import SimpleNamespace

import pytest
from tests.machines import hosts

from weft.topo import discovery


@pytest.fixture(scope="package", params=hosts.ALL)
def host(request, tmp_path_factory):
    """One of the eight: what the doctor looks at, and the topology with NVIDIA's driver where it has one."""
    name = request.param
    made = hosts.ALL[name](tmp_path_factory.mktemp(name))
    topology = discovery.read(made.root, driver=hosts.nvml_of(name))
    return SimpleNamespace(name=name, machine=made, topology=topology)

# SPDX-License-Identifier: BSD-3-Clause
import pytest
from tests.machines import trees

from weft.topo import devices, discovery
from weft.topo.model import Nic, Port


def test_infiniband_roce_and_ethernet(tmp_path):
    active = ("4: ACTIVE", "100 Gb/sec (4X EDR)")
    down = ("1: DOWN", "10 Gb/sec (4X SDR)")
    trees.rdma(tmp_path, "mlx5_0", "pci0000:00/0000:01:00.0", node=0, ports=[active, down], netdev="ib0")
    trees.rdma(tmp_path, "mlx5_1", "pci0000:00/0000:02:00.0", node=1, layer="Ethernet")
    trees.netdev(tmp_path, "ib0", "pci0000:00/0000:01:00.0", kind=32)
    trees.netdev(tmp_path, "eth0", "pci0000:00/0000:03:00.0/virtio2", speed=-1)
    trees.netdev(tmp_path, "eth1", "pci0000:00/0000:04:00.0", state="down")
    trees.write(tmp_path, {"sys/class/net/lo/operstate": "unknown"})
    ib, roce, eth0, eth1, ipoib = devices.read_nics(tmp_path)
    path = ("pci0000:00", "0000:01:00.0")
    ports = (Port(1, True, "active", 100e9), Port(2, False, "down", 10e9))
    assert ib == Nic("mlx5_0", "infiniband", 0, ports, ("ib0",), path)
    assert (roce.kind, roce.node, roce.rdma) == ("roce", 1, True)
    assert (eth0.kind, eth0.ports) == ("ethernet", (Port(None, True, "up", None),))
    assert eth1.ports == (Port(None, False, "down", 25e9),)
    assert (ipoib.name, ipoib.kind, ipoib.rdma) == ("ib0", "ipoib", False)


@pytest.mark.parametrize(
    ("layer", "driver", "node_type", "kind", "used"),
    [
        ("InfiniBand", "mlx5_core", "1: CA", "infiniband", True),
        ("Ethernet", "mlx5_core", "1: CA", "roce", True),
        ("Ethernet", "irdma", "4: RNIC", "iwarp", False),
        ("Unspecified", "efa", "7: unspecified", "efa", True),
        ("Unspecified", "other", "7: unspecified", "unspecified", False),
    ],
)
def test_kinds_of_rdma(tmp_path, layer, driver, node_type, kind, used):
    trees.rdma(tmp_path, "rdma0", "pci0000:00/0000:01:00.0", layer=layer, driver=driver, kind=node_type)
    (nic,) = devices.read_nics(tmp_path)
    assert (nic.kind, nic.rdma) == (kind, used)


def test_a_card_with_a_port_of_each(tmp_path):
    trees.rdma(tmp_path, "mlx4_0", "pci0000:00/0000:01:00.0", ports=[("4: ACTIVE", ""), ("4: ACTIVE", "")])
    trees.write(tmp_path, {"sys/class/infiniband/mlx4_0/ports/2/link_layer": "Ethernet"})
    assert devices.read_nics(tmp_path)[0].kind == "infiniband"


def test_bonds_count_and_a_containers_end_of_a_pair_where_there_is_nothing_else(tmp_path):
    net = "sys/class/net"
    trees.write(tmp_path, {f"{net}/eth0/{name}": text for name, text in trees.VETH.items()})
    trees.write(tmp_path, {f"{net}/lo/ifindex": 1, f"{net}/lo/iflink": 1, f"{net}/docker0/uevent": "DEVTYPE=bridge"})
    assert devices.read_nics(tmp_path) == (Nic("eth0", "ethernet", None, (Port(None, True, "up", None),), ("eth0",)),)
    trees.write(tmp_path, {f"{net}/bond0/uevent": "DEVTYPE=bond", f"{net}/bond0/operstate": "up"})
    trees.netdev(tmp_path, "eth1", "pci0000:00/0000:01:00.0")
    (tmp_path / f"{net}/eth1/master").symlink_to("../bond0")
    assert [(nic.name, nic.master) for nic in devices.read_nics(tmp_path)] == [("bond0", None), ("eth1", "bond0")]


def test_a_port_without_files_is_not_up(tmp_path):
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    assert devices.read_nics(tmp_path)[0].ports == (Port(1, False, "unknown", None),)


def test_gpus_on_the_bus_by_address(tmp_path):
    trees.gpu(tmp_path, "pci0000:80/0000:81:00.0", node=1, cpus="4-7")
    trees.gpu(tmp_path, "pci0000:00/0000:01:00.0", node=0, cpus="0-3")
    trees.pci(tmp_path, "pci0000:00/0000:02:00.0", vendor="0x10de", **{"class": "0x040300"})  # its sound
    trees.pci(tmp_path, "pci0000:00/0000:03:00.0", vendor="0x1a03", **{"class": "0x030000"})  # the console's
    first, second = devices.read_gpus(tmp_path)
    assert (first.name, first.node, first.cpus) == ("GPU0", 0, (0, 1, 2, 3))
    assert (second.name, second.node, second.pci) == ("GPU1", 1, ("pci0000:80", "0000:81:00.0"))


SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"


@pytest.mark.parametrize(
    ("path", "node", "link"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1", 0, "PIX"),  # the same card
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0", 0, "PIX"),  # the same switch
        (f"{SWITCH}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", 0, "PXB"),  # a switch behind it
        ("pci0000:00/0000:00:02.0/0000:08:00.0", 0, "PHB"),  # another port of the host bridge
        ("pci0000:40/0000:40:01.0/0000:41:00.0", 0, "NODE"),  # another host bridge
        ("pci0000:80/0000:80:01.0/0000:81:00.0", 1, "SYS"),
        ("platform/nic", -1, "same host"),  # not on PCI
    ],
)
def test_links_by_place_on_pci(tmp_path, path, node, link):
    trees.gpu(tmp_path, f"{SWITCH}/0000:02:00.0/0000:03:00.0", node=0)
    trees.rdma(tmp_path, "mlx5_0", path, node=node)
    made = discovery.read(tmp_path)
    assert str(made.between("GPU0", "mlx5_0")) == link

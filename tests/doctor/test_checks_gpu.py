# SPDX-License-Identifier: BSD-3-Clause
import shutil

import pytest
from tests.machines import hosts

from weft.doctor import checks_gpu
from weft.doctor.finding import Level


def test_the_driver_is_installed_with_the_headers_that_it_is_built_with(machine):
    found = checks_gpu.driver(machine("nd40"))
    assert found.what == "8 NVIDIA GPUs on the PCI bus, and no driver is loaded"
    assert "/proc/driver/nvidia/version: not there" in found.evidence
    assert found.remedy.startswith("install linux-headers-5.15.0-1023-azure and the driver")


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({"lib/modules/5.15.0-1023-azure/build/x": ""}, "install the driver "),
        ({"lib/modules/5.15.0-1023-azure/modules.dep": "updates/dkms/nvidia.ko.zst: x.ko"}, "modprobe nvidia; dmesg"),
        (
            {"lib/modules/5.15.0-1023-azure/modules.dep": "updates/dkms/nvidia.ko: x.ko", "sys/module/nouveau/x": ""},
            "modprobe nvidia (nouveau holds the GPUs",
        ),
    ],
    ids=["headers are there", "driver is installed", "nouveau"],
)
def test_what_is_there_is_not_proposed(machine, files, remedy):
    assert checks_gpu.driver(machine("nd40", files)).remedy.startswith(remedy)


def test_a_container_uses_the_drivers_of_its_host(machine):
    inside = machine("nd40", {".dockerenv": ""})
    hosts.namespaces(inside.root, pid=4026532204)
    assert checks_gpu.driver(inside).remedy.startswith("load it on the host")
    assert checks_gpu.headers(inside).level is Level.NOT_APPLICABLE


def test_device_files(machine):
    made = machine("dgx1")
    (made.root / "dev/nvidia7").unlink()
    assert checks_gpu.driver(made).what == "8 NVIDIA GPUs on the PCI bus, 7 of them for this process"
    shutil.rmtree(made.root / "dev")
    found = checks_gpu.driver(made)
    assert (found.level, found.remedy[:20]) == (Level.ERROR, "run nvidia-smi as ro")


def test_drivers_version(machine):
    assert checks_gpu.driver(machine("dgx1")).what.endswith("driver 560.35.03")
    assert checks_gpu.driver(machine("dgx1", {"proc/driver/nvidia/version": hosts.OLD_DRIVER})).what.endswith(
        "driver 520.61.05"
    )


def test_peer_memory_by_dma_buf(machine):
    made = machine("dgx1")
    shutil.rmtree(made.root / "sys/module/nvidia_peermem")
    assert "dma-buf" in checks_gpu.peer_memory(made).what
    (made.root / "proc/driver/nvidia/version").write_text(hosts.OLD_DRIVER)
    found = checks_gpu.peer_memory(made)
    assert (found.level, found.remedy[:23]) == (Level.WARNING, "modprobe nvidia-peermem")


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        (
            {"etc/modules-load.d/gpu.conf": "nvidia-peermem"},
            "/etc/modules-load.d/gpu.conf names it, and loading it failed",
        ),
        ({"proc/driver/nvidia/version": hosts.OLD_DRIVER.replace("520.61.05", "460.32.03")}, "install nv_peer_mem"),
    ],
    ids=["named already", "an old driver"],
)
def test_peer_memory_remedies(machine, files, remedy):
    assert checks_gpu.peer_memory(machine("hgx_h100", files)).remedy.startswith(remedy)


def test_nvidia_smi(machine):
    made = machine("dgx1")
    assert checks_gpu.matrix(made).what == "8 GPUs, joined by NV1, NV2, SYS"
    command = "nvidia-smi topo -m"
    some = {command: "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV1\t0-3\nGPU1\tNV1\t X \t0-3\n"}
    assert checks_gpu.matrix(machine("dgx1", commands=some)).what == "nvidia-smi has 2 of the 8 GPUs on the PCI bus"
    assert "took longer" in checks_gpu.matrix(machine("dgx1", commands={command: None})).what
    assert "is not here" in checks_gpu.matrix(machine("dgx1", commands={})).what

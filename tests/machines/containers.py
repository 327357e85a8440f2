# SPDX-License-Identifier: BSD-3-Clause
"""Containers as trees of files, each with one piece missing that weft needs or would use; see docs/containers.md."""

import dataclasses

from tests.machines import hosts, trees

THP = "sys/kernel/mm/transparent_hugepage"
IPC, PID, USER = 4026532201, 4026532204, 4026532100
UNPRIVILEGED = "CapEff:\t00000000a80425fb\nSeccomp:\t2"  # what Docker leaves


def docker(root, *, shm_mib=8192, environ=None, **own):
    """Nothing missing but what `own` namespaces keep away."""
    machine = hosts.bare(root, shm_nbytes=(shm_mib << 20, shm_mib << 20), environ=environ or {"PATH": "/usr/bin"})
    trees.cpus(root, trees.regular(sockets=1, cores=2), memory_gib=(16,))
    hosts.namespaces(root, **own)
    status = (root / "proc/self/status").read_text()
    trees.write(root, {".dockerenv": "", "proc/self/status": status + UNPRIVILEGED})
    return machine


def pod(root, *, shm_mib=64, first="dask"):
    """A container of a pod whose process 1 is `first`: its own, or that of the pod where processes are shared."""
    machine = docker(root, shm_mib=shm_mib, environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, ipc=IPC, pid=PID)
    trees.write(root, {"proc/1/comm": first})
    return machine


def with_ucx(machine):
    """UCX carries the messages between processes of `machine`."""
    return dataclasses.replace(machine, environ={**machine.environ, "DASK_WEFT__UCX__TLS": "posix,tcp,self"})


def shared_with_the_host(root):
    """--ipc=host --pid=host: the marks of an image alone."""
    return docker(root)


def small_shm(root):
    """Docker's default, which is enough."""
    return docker(root, shm_mib=64, ipc=IPC, pid=PID)


def small_shm_for_ucx(root):
    return with_ucx(small_shm(root))


def no_memfd(root):
    """With a seccomp profile of one's own."""
    return dataclasses.replace(docker(root, ipc=IPC, pid=PID), memfd="memfd_create: Operation not permitted")


def own_pid(root):
    """--ipc=host alone."""
    return docker(root, pid=PID)


def own_ipc(root):
    """--pid=host alone."""
    return docker(root, ipc=IPC)


def own_pid_with_ucx(root):
    return with_ucx(own_pid(root))


def own_ipc_with_ucx(root):
    return with_ucx(own_ipc(root))


def rootless(root):
    """Podman's, started by a user."""
    return docker(root, ipc=IPC, pid=PID, user=USER)


def cma(root):
    return docker(root, environ={"UCX_TLS": "posix,cma,tcp,self"}, ipc=IPC, pid=PID)


def small_pages(root):
    machine = docker(root, ipc=IPC, pid=PID)
    trees.write(root, {f"{THP}/shmem_enabled": "always within_size advise [never] deny force"})
    trees.write(root, {"proc/sys/user/max_user_namespaces": 127000})
    return machine


def no_gpu_files(root):
    """A host with a GPU and its driver, and a container without --gpus."""
    machine = docker(root, ipc=IPC, pid=PID)
    trees.gpu(root, "pci0000:01/0000:01:00.0", node=0)
    trees.write(root, {"proc/driver/nvidia/version": hosts.OPEN_DRIVER, "dev/null": ""})
    return machine


def no_rdma_files(root):
    """A host with InfiniBand, and a container without --device and --ulimit."""
    machine = docker(root, ipc=IPC, pid=PID, environ={"WEFT_LIBUCX": "system"})
    hosts.system_ucx(root)
    hosts.card(root, "mlx5_0", "pci0000:80/0000:80:00.0", node=0)
    (root / "dev/infiniband/uverbs0").unlink()
    trees.write(root, {"proc/self/limits": hosts.limits(locked="65536")})
    return machine


def few_files(root):
    machine = docker(root, ipc=IPC, pid=PID)
    trees.write(root, {"proc/self/limits": hosts.limits(files="1024")})
    return machine


def little_memory(root):
    machine = docker(root, ipc=IPC, pid=PID)
    trees.write(root, {"sys/fs/cgroup/memory.max": 512 << 20})
    return machine


def half_a_cpu(root):
    machine = docker(root, ipc=IPC, pid=PID)
    trees.write(root, {"sys/fs/cgroup/cpu.max": "50000 100000"})
    return machine


def pod_by_default(root):
    return pod(root)


def pod_by_default_with_ucx(root):
    return with_ucx(pod(root))


def pod_of_several(root):
    """With an emptyDir in memory at /dev/shm."""
    return pod(root, shm_mib=4096)


def pod_of_several_with_ucx(root):
    return with_ucx(pod_of_several(root))


def pod_that_shares_with_ucx(root):
    return with_ucx(pod_that_shares(root))


def pod_that_shares(root):
    """With that, and shareProcessNamespace."""
    return pod(root, shm_mib=4096, first="pause")


_OUTSIDE = "to share memory with processes outside: "
_POD = "to share memory with other containers of this pod: shareProcessNamespace: true"
_DOCKER = {"container": ("note", f"{_OUTSIDE}--network=host, or --network=container:NAME, as the same user")}
#: Where UCX has to share memory, it takes more namespaces.
_DOCKER_WITH_UCX = {
    "container": ("note", f"{_OUTSIDE}--ipc=host --pid=host --network=host, or --ipc=container:NAME --p")
}
_IN_A_POD = {"container": ("note", "")}
#: Everything that is not ok, by check: its level, and how its remedy begins.
FOUND = {
    shared_with_the_host: {},
    small_shm: _DOCKER,
    small_shm_for_ucx: _DOCKER_WITH_UCX | {"shared memory": ("warning", "start the container with --shm-size=8g")},
    no_memfd: _DOCKER_WITH_UCX
    | {"memfd": ("warning", "allow memfd_create, fcntl and fallocate in the container's seccomp profile")},
    own_pid: _DOCKER,
    own_ipc: _DOCKER,
    own_pid_with_ucx: {"container": ("note", f"{_OUTSIDE}--pid=host --network=host, or --pid=container:NAME alike")},
    own_ipc_with_ucx: {"container": ("note", f"{_OUTSIDE}--ipc=host --network=host, or --ipc=container:NAME alike")},
    rootless: _DOCKER,
    cma: _DOCKER_WITH_UCX
    | {
        "UCX variables": ("note", ""),
        "UCX settings": ("warning", "unset UCX_TLS"),
        "ptrace": ("note", "leave cma out of UCX_TLS"),
    },
    small_pages: _DOCKER | {"shared huge pages": ("note", "on the host: echo advise >")},
    no_gpu_files: _DOCKER
    | {
        "GPU driver": ("error", "start the container with the GPUs: docker run --gpus all"),
        "nvidia-smi": ("note", "install nvidia-utils"),
    },
    no_rdma_files: _DOCKER
    | {
        "RDMA devices": ("error", "start the container with --device /dev/infiniband"),
        "locked memory": ("error", "start the container with --ulimit memlock=-1"),
        "IPoIB": ("note", "start the container with --network=host"),
    },
    few_files: _DOCKER | {"open files": ("note", "start the container with --ulimit nofile=65536")},
    little_memory: _DOCKER | {"memory limit": ("warning", "ask for more")},
    half_a_cpu: _DOCKER | {"CPUs": ("warning", "ask for whole CPUs")},
    pod_by_default: _IN_A_POD,
    pod_by_default_with_ucx: {
        "shared memory": ("warning", "mount an emptyDir with medium: Memory at /dev/shm"),
        "container": ("note", _POD),
    },
    pod_of_several: _IN_A_POD,
    pod_of_several_with_ucx: {"container": ("note", _POD)},
    pod_that_shares: _IN_A_POD,
    pod_that_shares_with_ucx: _IN_A_POD,
}

# SPDX-License-Identifier: BSD-3-Clause
import pytest

from weft.doctor import checks_memory
from weft.doctor.finding import Level

USERNS = "proc/sys/user/max_user_namespaces"
THP = "sys/kernel/mm/transparent_hugepage"


BY_UCX = {"environ": {"UCX_TLS": "posix,self,tcp"}}


@pytest.mark.parametrize(
    ("free", "by_ucx", "by_the_ring"),
    [
        (3 << 20, Level.ERROR, Level.NOTE),
        (20 << 20, Level.WARNING, Level.OK),
        (64 << 20, Level.WARNING, Level.OK),
        (545 << 20, Level.OK, Level.OK),
        (32 << 30, Level.OK, Level.OK),
    ],
)
def test_room_in_dev_shm(machine, free, by_ucx, by_the_ring):
    assert checks_memory.shared_memory(machine(shm_nbytes=(32 << 30, free), **BY_UCX)).level is by_ucx
    assert checks_memory.shared_memory(machine(shm_nbytes=(32 << 30, free))).level is by_the_ring


NO_DASK = {"folders": ()}
MAKE = "mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm"
POSIX, TCP = {"UCX_TLS": "posix,self"}, {"UCX_TLS": "tcp,self"}
NANNIES = "Dask's nannies cannot start, because Python's multiprocessing.Queue needs it"


@pytest.mark.parametrize("environ", [{}, TCP])
def test_dask_cannot_start_without_dev_shm(machine, environ):
    missing = checks_memory.shared_memory(machine(shm_nbytes=None, environ=environ))
    assert (missing.level, missing.what, missing.remedy) == (Level.ERROR, f"no /dev/shm: {NANNIES}", MAKE)
    read_only = checks_memory.shared_memory(machine(shm_read_only=True, environ=environ))
    assert (read_only.level, read_only.what) == (Level.ERROR, f"/dev/shm is read-only: {NANNIES}")
    both = checks_memory.shared_memory(machine(shm_nbytes=None, environ=POSIX))
    assert (both.what, both.remedy) == (f"no /dev/shm: {NANNIES}, and UCX's posix cannot be used", MAKE)


@pytest.mark.parametrize(
    ("environ", "level", "said", "remedy"),
    [
        ({}, Level.NOTE, "no /dev/shm: no low-level worker", MAKE),
        (POSIX, Level.ERROR, "no /dev/shm: UCX's posix cannot be used", f"{MAKE}, or unset UCX_TLS"),
        (TCP, Level.NOTE, "no /dev/shm: UCX_TLS has no posix, so weft does not need it", ""),
    ],
)
def test_no_dev_shm(machine, environ, level, said, remedy):
    found = checks_memory.shared_memory(machine(shm_nbytes=None, environ=environ, **NO_DASK))
    assert (found.level, found.remedy) == (level, remedy)
    assert found.what.startswith(said)


def test_little_room_where_ucx_does_not_use_it(machine):
    found = checks_memory.shared_memory(machine(shm_nbytes=(1 << 20, 0), environ=TCP))
    assert (found.level, found.what) == (Level.OK, "0 B free in /dev/shm; connections on this host need none")


@pytest.mark.parametrize(
    ("name", "environ", "level", "remedy"),
    [
        ("bare", {}, Level.NOTE, "mount -o remount,rw /dev/shm"),
        ("bare", POSIX, Level.ERROR, "mount -o remount,rw /dev/shm, or unset UCX_TLS"),
        ("bare", TCP, Level.NOTE, ""),
        ("container", {}, Level.NOTE, "start the container with --shm-size=8g, or --ipc=host"),
    ],
)
def test_a_read_only_dev_shm(machine, name, environ, level, remedy):
    found = checks_memory.shared_memory(machine(name, environ=environ, shm_read_only=True, **NO_DASK))
    assert (found.level, found.remedy) == (level, remedy)
    assert found.what.startswith("/dev/shm is read-only")
    assert found.evidence[0].endswith("free, read-only")


def test_a_read_only_dev_shm_where_a_process_sees_a_gpu(machine):
    found = checks_memory.shared_memory(machine(files={"dev/nvidiactl": ""}, shm_read_only=True))
    assert (found.level, found.remedy) == (Level.ERROR, "mount -o remount,rw /dev/shm")


def test_room_for_links_and_not_for_low_level_workers(machine):
    said = [checks_memory.shared_memory(machine(shm_nbytes=(64 << 20, free << 20), **BY_UCX)).what for free in (19, 20)]
    assert said[0].endswith(
        "room for 12 links of UCX's between processes of this host, and for no low-level worker, which needs 20 MiB"
    )
    assert said[1].endswith("room for 13 links of UCX's between processes of this host")


@pytest.mark.parametrize(
    ("files", "changes", "why"),
    [
        ({}, BY_UCX, "UCX_TLS is set"),
        ({}, {"environ": {"DASK_WEFT__UCX__TLS": "tcp"}}, "DASK_WEFT__UCX__TLS is set"),
        ({"dev/nvidiactl": ""}, {}, "/dev/nvidiactl is there, so processes can see a GPU"),
        ({"dev/nvidiactl": ""}, {"environ": {"CUDA_VISIBLE_DEVICES": "-1"}}, None),
        ({}, {"memfd": "memfd_create: Operation not permitted"}, "no memfd: memfd_create: Operation not permitted"),
        ({}, {}, None),
    ],
)
def test_why_dev_shm_has_links_in_it(machine, files, changes, why):
    found = checks_memory.shared_memory(machine(files=files, **changes))
    said = [line for line in found.evidence if line.startswith("UCX carries")]
    assert said == ([f"UCX carries messages between processes of this host: {why}"] if why else [])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("bare", "in the filter that this process"), ("container", "in the container's seccomp profile (Docker's own")],
)
def test_a_memfd_that_is_refused(machine, name, remedy):
    found = checks_memory.memfd(machine(name, memfd="memfd_create: Operation not permitted"))
    assert (found.level, found.evidence) == (Level.WARNING, ("memfd_create: Operation not permitted",))
    assert "UCX carries messages" in found.what
    assert remedy in found.remedy


def test_memfds(machine):
    assert checks_memory.memfd(machine()).level is Level.OK
    assert checks_memory.memfd(machine(memfd=None)).level is Level.NOTE


@pytest.mark.parametrize("changes", [BY_UCX, {}])
def test_what_ucx_left_is_removed_before_more_is_asked_for(machine, changes):
    full = machine(files={"dev/shm/ucx_shm_posix_1a2b": ""}, shm_nbytes=(64 << 20, 3 << 20), **changes)
    found = checks_memory.shared_memory(full)
    assert found.remedy.startswith("python -c 'import weft.memory; weft.memory.remove_orphans()'")
    assert "/dev/shm: 1 files of UCX's, in use or left by processes that were killed" in found.evidence


@pytest.mark.parametrize(
    ("name", "environ", "remedy"),
    [
        ("bare", {}, "mount -o remount"),
        ("container", {}, "start the container with --shm-size"),
        ("container", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "mount an emptyDir"),
    ],
)
def test_dev_shm_is_enlarged_where_it_was_made(machine, name, environ, remedy):
    found = checks_memory.shared_memory(machine(name, shm_nbytes=(64 << 20, 1 << 20), environ=environ))
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("mode", "level"), [("advise", Level.OK), ("always", Level.OK), ("never", Level.NOTE), ("deny", Level.NOTE)]
)
def test_shared_huge_pages(machine, mode, level):
    modes = "always within_size advise never deny force".replace(mode, f"[{mode}]")
    found = checks_memory.shared_huge_pages(machine(files={f"{THP}/shmem_enabled": modes}))
    assert found.level is level
    assert ("echo advise" in found.remedy) == (level is Level.NOTE)


@pytest.mark.parametrize(
    ("files", "how"),
    [
        ({"proc/self/status": "CapEff: 000001ffffffffff\n"}, "with CAP_SYS_ADMIN"),
        ({USERNS: "1000\n"}, "in a user namespace"),
        ({USERNS: "0\n"}, None),
        ({"proc/sys/user/max_user_namespaces": "9", "proc/sys/kernel/unprivileged_userns_clone": "0"}, None),
        (
            {"proc/sys/user/max_user_namespaces": "9", "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
            None,
        ),
        ({"proc/sys/user/max_user_namespaces": "9", f"{THP}/enabled": "always madvise [never]"}, None),
    ],
)
def test_weft_s_own_mount_has_huge_pages_where_it_may_mount(machine, files, how):
    never = {f"{THP}/shmem_enabled": "always within_size advise [never] deny force", f"{THP}/enabled": "[madvise]"}
    found = checks_memory.shared_huge_pages(machine(files=never | files))
    assert found.level is (Level.OK if how else Level.NOTE)
    assert not how or found.what.endswith(how)


def test_huge_pages_that_are_forbidden(machine):
    assert checks_memory.huge_pages(machine(files={f"{THP}/enabled": "always madvise [never]"})).level is Level.NOTE


def test_limits_say_what_sets_them(machine):
    made = machine("container")
    assert checks_memory.memory_limit(made).evidence == ("memory: 512 MiB, by /sys/fs/cgroup/memory.max",)
    found = checks_memory.cpus(made)
    assert found.what == "1.5 CPUs of time: a transfer keeps one core busy at each end"
    assert checks_memory.cpus(machine("slurm")).what == "CPUs 24-31 of 48 may be used"


def test_copies(machine):
    assert checks_memory.copies(machine(copies=None)).level is Level.NOTE
    assert checks_memory.copies(machine(copies=(40e9, 38e9))).level is Level.OK
    found = checks_memory.copies(machine(copies=(45e9, 2.9e9)))
    assert (found.level, "16 times as long" in found.what) == (Level.NOTE, True)
    assert found.evidence[0].startswith("memmove of 64 KiB: 45 GB/s, and 2.9 GB/s")
    assert "x86_rep_movsb_threshold" in found.remedy

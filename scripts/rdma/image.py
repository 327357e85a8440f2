# SPDX-License-Identifier: BSD-3-Clause
"""The guest's kernel, initial RAM disk and disk, made of Debian's packages; nothing is installed and nobody is root.

apt resolves and fetches with a state of its own, so this machine's is untouched; the packages are unpacked, not
configured, and what their scripts would have done is done here as far as it matters.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

SUITE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = [
    *("base-files", "base-passwd", "busybox-static", "iproute2", "libc-bin", "linux-image-amd64"),
    *("libucx0", "ibverbs-providers", "ibverbs-utils", "libpython3.13-dev", "python3"),
    *(
        "python3-hypothesis",
        "python3-numpy",
        "python3-psutil",
        "python3-pytest",
        "python3-pytest-timeout",
        "python3-rich",
    ),
]
#: apt is told that these are there: libucx0's modules for AMD GPUs bring LLVM along, the kernel a set of boot tools.
LEFT_OUT = ["libamdhip64-5", "libhsa-runtime64-1", "initramfs-tools", "linux-base", "kmod"]
#: What is loaded before the disk is there, with what it depends on.
MODULES = [
    *("virtio_pci", "virtio_blk", "virtio_rng", "ext4", "crc32c_generic", "crc32_generic", "9pnet_virtio", "9p"),
    *("dummy", "ib_uverbs", "rdma_ucm", "rdma_rxe"),
]
PYTHON = "python3.13"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DISK = "700M"


class Image:
    """What a guest boots from, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.kernel = folder / "vmlinuz"
        self.initrd = folder / "initrd"
        self.disk = folder / "disk.ext4"
        self.packages = folder / "packages.txt"
        self.recipe = folder / "recipe"

    def python(self) -> tuple[list[str], dict[str, str]]:
        """Return command and environment with which the guest's Python runs here, by the guest's own C library."""
        libraries = self.root / _LIBRARIES
        loader = libraries / "ld-linux-x86-64.so.2"
        command = [loader, "--library-path", libraries, self.root / "usr/bin" / PYTHON]
        return [str(part) for part in command], {"PYTHONHOME": str(self.root / "usr")}


def make(cache: Path) -> Image:
    """Return the image in `cache`, made now if it is not there."""
    texts = (Path(__file__), Path(__file__).with_name("guest") / "init")
    recipe = hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()
    image = Image(cache / "image")  # always the same: the native module is built again where its headers move
    if image.recipe.is_file() and image.recipe.read_text() == recipe:
        return image
    making = Image(cache / "making")
    for remains in (image.folder, making.folder, cache / "apt"):
        shutil.rmtree(remains, ignore_errors=True)
    making.root.mkdir(parents=True)
    kernel = making.folder / "kernel"
    debs = _fetch(cache / "apt")
    for deb in debs:
        _run("dpkg-deb", "-x", deb, kernel if deb.name.startswith("linux-image") else making.root)
    making.packages.write_text("".join(f"{deb.stem}\n" for deb in debs))
    _finish(making)
    shutil.copy(next(kernel.glob("boot/vmlinuz-*")), making.kernel)
    _write_initrd(making, kernel)
    _run("mkfs.ext4", "-q", "-E", "root_owner=0:0", "-d", making.root, making.disk, _DISK)
    shutil.rmtree(kernel)
    shutil.rmtree(cache / "apt")
    making.recipe.write_text(recipe)
    making.folder.rename(image.folder)
    return image


def _fetch(apt: Path) -> list[Path]:
    """Have apt fetch the packages with all that they need."""
    archives = apt / "archives"
    for folder in (apt / "lists/partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    fields = "Status: install ok installed\nArchitecture: amd64\nVersion: 99\nMaintainer: none\nDescription: left out"
    (apt / "status").write_text("".join(f"Package: {name}\n{fields}\n\n" for name in LEFT_OUT))
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    options = {
        "Dir::State": apt,
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Cache::Archives": archives,
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*command, "update")
    _run(*command, "install", "--yes", "--download-only", *PACKAGES)
    return sorted(archives.glob("*.deb"))


def mirror() -> str:
    """Return the Debian mirror that apt uses here; nothing if it knows none."""
    command = ["apt-get", "indextargets", "Origin: Debian", "Label: Debian", "--format", "$(REPO_URI)"]
    return next(iter(sorted(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())), "")


def _finish(image: Image) -> None:
    """Do what the packages' scripts would have done."""
    root = image.root
    for name in ("dev", "proc", "run", "sys", "tmp", "weft", "results"):
        (root / name).mkdir(exist_ok=True)
    (root / "usr/bin/sh").symlink_to("busybox")
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / f"etc/{name}")
    # The one that is found first includes the other by a path that only a system's compiler looks along.
    shutil.copy2(root / f"usr/include/x86_64-linux-gnu/{PYTHON}/pyconfig.h", root / f"usr/include/{PYTHON}")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    for name in ("blas", "lapack"):
        (root / _LIBRARIES / f"lib{name}.so.3").symlink_to(f"{name}/lib{name}.so.3")
    for name in ("doc", "locale", "man"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    # Compiling in the guest, at each boot, would take longer than all the rest.
    python, environment = image.python()
    folders = [root / f"usr/lib/{PYTHON}", root / "usr/lib/python3"]
    compiling = ["-m", "compileall", "-q", "-s", root, "-p", "/", "--invalidation-mode", "unchecked-hash", *folders]
    _run(*python, *compiling, env={**os.environ, **environment})


def _write_initrd(image: Image, kernel: Path) -> None:
    """Write busybox, the modules in the order of loading, and the script that the kernel starts."""
    folder = image.folder / "initrd.d"
    for name in ("bin", "modules", "root"):
        (folder / name).mkdir(parents=True)
    busybox = image.root / "usr/bin/busybox"
    shutil.copy(busybox, folder / "bin/busybox")
    shutil.copy(Path(__file__).with_name("guest") / "init", folder / "init")
    (folder / "init").chmod(0o755)
    files = {
        path.name.partition(".ko")[0].replace("-", "_"): path for path in kernel.glob("**/*.ko*") if path.is_file()
    }
    loaded: dict[str, bytes] = {}
    for name in MODULES:
        for module, code in _with_dependencies(name, files, loaded):
            (folder / "modules" / f"{len(loaded):02}-{module}.ko").write_bytes(code)
            loaded[module] = code
    names = "".join(f"{path.relative_to(folder)}\n" for path in sorted(folder.rglob("*")))
    with image.initrd.open("wb") as file:
        subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=folder, input=names.encode(), stdout=file, check=True)
    shutil.rmtree(folder)


def _with_dependencies(name: str, files: dict[str, Path], loaded: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield a module after what it depends on; nothing for what is loaded, or built into the kernel."""
    if name in loaded or name not in files:
        return
    code = files[name].read_bytes()
    code = lzma.decompress(code) if files[name].suffix == ".xz" else code
    depends = re.search(rb"\0depends=([^\0]*)\0", code)
    for other in depends[1].decode().split(",") if depends else ():
        yield from _with_dependencies(other, files, loaded)
    yield name, code


def _run(*command: str | os.PathLike[str], env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=env, timeout=600, stdout=subprocess.DEVNULL)

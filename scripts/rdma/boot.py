# SPDX-License-Identifier: BSD-3-Clause
"""One boot of the guest: QEMU without KVM, bounded in time; the disk is left as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

from image import Image

KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0"


def boot(image: Image, weft: Path, results: Path, *, limit_s: float) -> bool:
    """Boot, with `weft` to read and `results` to write; return whether the guest ended by itself in time.

    What the guest says goes to ``console.txt`` in `results`.
    """
    machine = "-accel tcg,thread=multi -M q35 -cpu max -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot"
    command = ["setpriv", "--pdeathsig", "KILL"]  # whatever ends this process
    command += ["qemu-system-x86_64", *machine.split(), "-display", "none", "-serial", "stdio"]
    command += ["-kernel", image.kernel, "-initrd", image.initrd, "-append", KERNEL_ARGUMENTS]
    command += ["-drive", f"file={image.disk},format=raw,if=none,id=disk,snapshot=on"]
    command += ["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]
    for tag, folder, mode in (("weft", weft, ",readonly=on"), ("results", results, "")):
        command += ["-fsdev", f"local,id={tag},path={folder},security_model=none{mode}"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    with (results / "console.txt").open("wb") as console:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, timeout=limit_s
            )
        except subprocess.TimeoutExpired:  # run() has killed it
            return False
    return done.returncode == 0

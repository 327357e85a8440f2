# SPDX-License-Identifier: BSD-3-Clause
"""The commands, run with a fake az, and cloud-init's file; there is no Azure here."""

import itertools
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from weft.deploy import azure
from weft.errors import InvalidParamError

ODD = 'it\'s "odd" $HOME `id` #1 \\ 50%: - {x}'
SCHEMA = Path("/usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json")
ALL = [
    azure.ScaleSet("weft.whl"),
    azure.ScaleSet(ODD, drivers="doca", nvidia_driver=ODD, nvidia_package=ODD, doca=ODD),
    azure.ScaleSet(ODD, drivers="inbox"),
]


def setup(scale_set):
    return yaml.safe_load(azure.cloud_init(scale_set))["write_files"][0]["content"]


@pytest.mark.parametrize("scale_set", ALL)
def test_cloud_init(scale_set):
    made = yaml.safe_load(azure.cloud_init(scale_set))
    assert list(made)[:4] == ["package_update", "packages", "write_files", "runcmd"]
    assert ("power_state" in made) == (scale_set.drivers != "image")
    (file,) = made["write_files"]
    assert file["permissions"] == "0755"
    assert made["runcmd"] == [["bash", "-c", f"{file['path']} >/var/log/weft-setup.log 2>&1"]]


@pytest.mark.parametrize("scale_set", ALL)
def test_cloud_init_keeps_its_schema(scale_set):
    if not SCHEMA.exists():
        pytest.skip("no cloud-init: apt-get install cloud-init")
    jsonschema.validate(yaml.safe_load(azure.cloud_init(scale_set)), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("scale_set", ALL)
def test_shellcheck(scale_set, shellcheck):
    shellcheck(setup(scale_set))
    shellcheck(azure.script(azure.ScaleSet(ODD, ssh_from="203.0.113.7", drivers=scale_set.drivers)))


@pytest.mark.parametrize("scale_set", ALL)
def test_words_are_whole_after_yaml_and_shell(scale_set, fakes):
    """The setup's assignments, without what it does."""
    head = setup(scale_set).partition("\nset -eux\n")[0]
    names = ("package", "drivers", "nvidia_driver", "nvidia_package", "doca")
    done = fakes.run(head + "".join(f'\nprintf "%s\\n" "${name}"' for name in names), 0)
    assert done.stdout.splitlines() == [getattr(scale_set, name) for name in names]


def az(fakes, scale_set):
    fakes.add("bin/az", '#!/bin/bash\nprintf "<%s>" "$@" >>"$CALLS/az"; echo >>"$CALLS/az"\n')
    done = fakes.run(azure.script(scale_set), 0)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.strip("<>").split("><") for line in fakes.lines("az")]


def test_a_network_of_its_own(fakes):
    calls = az(fakes, azure.ScaleSet("weft.whl", 4, "203.0.113.0/24", name="a b", user=ODD))
    assert [call[:3] for call in calls] == [
        ["group", "create", "--name"],
        ["network", "nsg", "create"],
        ["network", "nsg", "rule"],
        ["vmss", "create", "--resource-group"],
        ["vmss", "nic", "list"],
        ["vmss", "list-instance-public-ips", "--resource-group"],
    ]
    create = calls[3]
    given = dict(itertools.pairwise(create))
    assert given["--single-placement-group"] == given["--accelerated-networking"] == "true"
    assert (given["--orchestration-mode"], given["--platform-fault-domain-count"]) == ("Uniform", "1")
    assert (given["--instance-count"], given["--name"], given["--admin-username"]) == ("4", "a b", ODD)
    assert (given["--vnet-name"], given["--nsg"], given["--load-balancer"]) == ("a b-net", "a b-nsg", "")
    assert create[-3:] == ["--public-ip-per-vm", "--output", "none"]
    rule = calls[2]
    assert rule[rule.index("--source-address-prefixes") + 1] == "203.0.113.0/24"


def test_a_subnet_of_yours(fakes):
    calls = az(fakes, azure.ScaleSet("weft.whl", subnet="/subscriptions/x/subnets/y"))
    assert [call[:2] for call in calls] == [["group", "create"], ["vmss", "create"], ["vmss", "nic"]]
    assert calls[1][-4:] == ["--subnet", "/subscriptions/x/subnets/y", "--output", "none"]


def test_the_file_that_is_handed_over(fakes):
    fakes.add("bin/az", '#!/bin/bash\nwhile [[ ${1-} ]]; do [[ $1 == --custom-data ]] && cat "$2"; shift; done\n:\n')
    scale_set = azure.ScaleSet(ODD, subnet="x")
    assert fakes.run(azure.script(scale_set), 0).stdout == azure.cloud_init(scale_set)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"package": "a\nb"}, "--package 'a\\nb': a control character"),
        ({"image": "a\x1b"}, "--image"),
        ({"ssh_from": "*"}, "--ssh-from '*'"),
        ({"ssh_from": "203.0.113.7/24"}, "has host bits set"),
        ({"drivers": "none"}, "--drivers 'none': one of image, doca, inbox"),
        ({}, "give --ssh-from ADDRESS, or --subnet ID"),
        ({"ssh_from": "203.0.113.7", "subnet": "x"}, "give --ssh-from or --subnet, not both"),
    ],
)
def test_what_cannot_be_asked(options, why):
    with pytest.raises(InvalidParamError) as raised:
        azure.script(azure.ScaleSet(**{"package": "weft.whl", **options}))
    assert why in str(raised.value)

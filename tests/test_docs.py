# SPDX-License-Identifier: BSD-3-Clause
"""What the documentation says about the tests is true."""

import argparse
import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from distributed.cli import dask_scheduler

from weft.doctor import checks
from weft.topo import size
from weft.worker import command as worker

ROOT = Path(__file__).parents[1]


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_fault_names_tests_that_exist_or_says_that_there_is_none():
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("|")]
    rows = [row for row in rows if not re.match(r"\|(---| fault )", row)]
    assert len(rows) > 40
    for row in rows:
        proof = row.strip("| ").rpartition("|")[2]
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", proof)
        assert named or "**no**" in proof, row
        for path, name in named:
            assert name in functions_of(path), f"{path}::{name}"


def test_the_files_that_the_design_names_are_there():
    text = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"`((?:src|tests|scripts|docs)/[\w./]+)`", text))
    assert len(named) >= 12
    assert {name for name in named if not (ROOT / name).exists()} == set()


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "at_least"),
    [("README.md", 2), ("docs/tutorial.md", 8), ("docs/dask-observability.md", 1), ("docs/security.md", 2)],
)
def test_every_block_of_python_runs(page, at_least, tmp_path):
    blocks = blocks_of(page)
    assert len(blocks) >= at_least
    # The guard is for the cluster's workers, which import the program that they are started from.
    program = tmp_path / "blocks.py"
    program.write_text('if __name__ == "__main__":\n' + textwrap.indent("\n".join(blocks), "    "))
    subprocess.run([sys.executable, program], check=True, timeout=120)


def test_every_check_of_distributed_names_tests_that_exist():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs/dask-conformance.md").read_text())
    assert len(named) >= 10
    for path, name in named:
        assert name in functions_of(path), f"{path}::{name}"


def manifests():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/containers.md").read_text(), re.MULTILINE | re.DOTALL)
    return [manifest for block in blocks for manifest in yaml.safe_load_all(block)]


def pods():
    for manifest in manifests():
        if manifest["kind"] in ("Pod", "Deployment"):
            yield manifest["spec"]["template"]["spec"] if manifest["kind"] == "Deployment" else manifest["spec"]


def test_kubernetes_manifests_are_whole():
    kinds = {"Pod": "v1", "Service": "v1", "Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}
    assert len(manifests()) >= 5
    for manifest in manifests():
        assert {*manifest} == {"apiVersion", "kind", "metadata", "spec"}
        assert kinds[manifest["kind"]] == manifest["apiVersion"]
        if manifest["kind"] == "Deployment":
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"]["matchLabels"] == labels


def test_containers_have_room_in_dev_shm_where_ucx_carries_messages_within_the_host():
    assert len([*pods()]) >= 4
    for pod in pods():
        shm = {volume["name"] for volume in pod.get("volumes", []) if volume["emptyDir"]["medium"] == "Memory"}
        for container in pod["containers"]:
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            with_ucx = "nvidia.com/gpu" in container.get("resources", {}).get("limits", {})
            assert [*mounts] == (["/dev/shm"] if with_ucx else [])
            assert {*mounts.values()} <= shm


def test_commands_of_containers_have_the_options_that_programs_have():
    parser = argparse.ArgumentParser()
    worker.add_arguments(parser)
    commands = [container["command"] for pod in pods() for container in pod["containers"]]
    assert len(commands) >= 4
    for command in commands:
        match command:
            case ["weft", "worker", *arguments]:
                size.memory_limit(parser.parse_args(arguments).memory_limit, 2**35)
            case ["dask", "scheduler", *arguments]:
                dask_scheduler.main.make_context("dask scheduler", arguments)
            case [program, *_]:
                assert program == "python3"


def test_the_dockerfile_copies_what_is_there_and_installs_an_extra_that_is():
    text = (ROOT / "docker/Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert len(copied) >= 5
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.search(r"/source\[(\w+)\]", text)[1] in project["optional-dependencies"]
    assert {project["readme"], *project["license-files"]} <= {*copied}


def test_every_check_that_containers_name_is_the_doctors():
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", (ROOT / "docs/containers.md").read_text(), re.MULTILINE)[1:]
    named = {check.strip() for row in rows for check in row.split(",") if check.strip()}
    assert len(named) >= 9
    assert named <= {*checks.CHECKS}


#: A measured figure: times and rates with a decimal point. Limits and settings have none, as a rule.
MEASURED = re.compile(r"\b\d+\.\d+ (?:ns|us|ms|s|MB/s|GB/s)\b|\b\d\.\d\d \(\d\.\d\d-")
#: What says where a figure comes from, or that it is no measurement.
ORIGIN = re.compile(
    r"by hand|(?:benchmarks|dask)/[\w-]+\.json|assumed|tested with|at most|at least|limit|within|every|plus|slept"
)


def paragraphs_of(page):
    """The text of a page outside of what is written from records: paragraphs, each with the table that follows it."""
    text = re.sub(r"<!-- figures: .*?<!-- end of figures -->|^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    return re.split(r"\n\s*\n(?!\|)|\n(?=- )", text)


@pytest.mark.parametrize(
    "page",
    [p for p in sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]) if p.stem != "design"],
    ids=lambda page: page.stem,
)
def test_a_figure_in_the_text_has_a_record_or_was_taken_by_hand(page):
    """`scripts/benchmarks.py` writes figures between marks; a figure elsewhere says `(by hand)`."""
    silent = [p for p in paragraphs_of(page) if MEASURED.search(p) and not ORIGIN.search(p)]
    assert silent == []

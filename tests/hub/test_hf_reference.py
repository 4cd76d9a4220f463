"""The form of `hf:` references, and which file of a repository one means."""

from __future__ import annotations

import json
import pickle

import pytest

from ostinato.errors import huggingface as errors
from ostinato.errors.base import OstinatoError
from ostinato.errors.huggingface import (
    HubChoice,
    HubChoiceNeeded,
    HubFileMissing,
    HubModelMissing,
    MalformedHubReference,
    PickleRefused,
)
from ostinato.hub import resolve
from ostinato.hub.hf import gguf, names, safetensors
from ostinato.hub.hf.names import RepoFile
from ostinato.hub.hf.reference import parse


def files(*listed: str) -> tuple[RepoFile, ...]:
    return tuple(RepoFile(name, 1000) for name in listed)


def picked(selector: str, *listed: str) -> str:
    return gguf.pick(parse("hf:org/name" + selector), gguf.models(files(*listed))).name


@pytest.mark.parametrize(
    ("text", "repo", "quant", "file", "revision"),
    [
        ("hf:org/name", "org/name", None, None, "main"),
        ("hf:a.b_c-d/E.1-x_", "a.b_c-d/E.1-x_", None, None, "main"),
        ("hf:org/name:q4_k_m", "org/name", "q4_k_m", None, "main"),
        ("hf:org/name:UD-Q4_K_XL@v1.0", "org/name", "UD-Q4_K_XL", None, "v1.0"),
        ("hf:org/name:sub/a b.Q4_0.GGUF", "org/name", None, "sub/a b.Q4_0.GGUF", "main"),
        ("hf:org/name@refs/pr/1", "org/name", None, None, "refs/pr/1"),
    ],
)
def test_the_parts_of_a_reference(text, repo, quant, file, revision):
    parsed = parse(text)
    assert (parsed.repo, parsed.quant, parsed.file, parsed.revision) == (repo, quant, file, revision)


BAD_REPOS = [
    "", "name", "/name", "org/", "a/b/c", "../name", "org/..", "org/.", "org/a..b", "org/a b", "org/-a",
    "org/a-", "org/a--b", "org/a.git", "org/" + "x" * 97, "x" * 97 + "/a", "org/ä", "org\\a/b", "org/a%2e",
    "/org/name", "//org/name", "org/a\n", "org/a?b", "org/a#b", "org/a\0",
]  # fmt: skip
BAD_TAILS = [
    ":", "@", ":Q4_0@", ":@main", ":a b", ":../x.gguf", ":/x.gguf", ":a//x.gguf", ":a\\x.gguf", ":./x.gguf",
    ":x\n.gguf", ":" + "Q" * 65, ":" + "x" * 400 + ".gguf", ":Q4_0:Q5_0", "@../main", "@a..b", "@a//b", "@/a",
    "@a/", "@a b", "@a.lock", "@.a", "@a/.b", "@-a", "@a?b", "@" + "x" * 201,
]  # fmt: skip


@pytest.mark.parametrize(
    "text", [f"hf:{repo}" for repo in BAD_REPOS] + [f"hf:org/name{t}" for t in BAD_TAILS]
)
def test_a_malformed_reference_is_refused_before_anything(text, monkeypatch):
    from ostinato.hub.hf import client

    def explode(*args, **kwargs):
        pytest.fail("went on with a malformed reference")

    monkeypatch.setattr(client, "cache_root", explode)
    with pytest.raises(MalformedHubReference) as caught:
        resolve(text)
    assert "hf:org/name[:QUANT or :FILE.gguf][@REVISION]" in caught.value.remedy
    assert str(caught.value).isprintable()


def test_a_path_object_or_another_spelling_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:org").mkdir()
    (tmp_path / "hf:org" / "name").write_bytes(b"")
    assert resolve("./hf:org/name").source == "path"
    assert resolve(tmp_path / "hf:org" / "name").source == "path"


@pytest.mark.parametrize(
    ("name", "quant", "fits"),
    [
        ("Model-1.5B-Q4_K_M.gguf", "Q4_K_M", True),
        ("Model-1.5B-Q4_K_M.gguf", "q4_k_m", True),
        ("model.q4_k_m.gguf", "Q4_K_M", True),
        ("model_q4_k_m.gguf", "Q4_K_M", True),
        ("Q4_K_M/model-Q4_K_M-00001-of-00002.gguf", "Q4_K_M", True),
        ("Q4_K_M.gguf", "Q4_K_M", True),
        ("Model-UD-Q4_K_XL.gguf", "Q4_K_XL", True),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", True),
        ("Model-BF16.gguf", "bf16", True),
        ("Model-Q4_K_M.gguf", "Q4_K", False),
        ("Model-Q4_K_M.gguf", "K_M", False),
        ("Model-IQ4_XS.gguf", "Q4_XS", False),
        ("Model-BF16.gguf", "F16", False),
        ("Q8_0/Model.gguf", "Q8_0", False),
        ("Model-Q4_K_M.gguf", "gguf", False),
        ("Model-Q4_K_M.gguf", "UD-Q4_K_M", False),
    ],
)
def test_a_quantisation_is_a_whole_component(name, quant, fits):
    assert gguf.is_called(name, quant) is fits


def test_without_a_selector():
    assert picked("", "a-Q8_0.gguf", "a-Q4_K_M.gguf", "README.md") == "a-Q4_K_M.gguf"
    assert picked("", "a-Q8_0.gguf", "config.json") == "a-Q8_0.gguf"
    with pytest.raises(HubChoiceNeeded) as caught:
        picked("", "a-Q8_0.gguf", "a-Q5_0.gguf")
    assert [choice.name for choice in caught.value.choices] == ["a-Q5_0.gguf", "a-Q8_0.gguf"]
    with pytest.raises(HubChoiceNeeded):
        picked("", "a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-Q8_0.gguf")


def test_with_a_selector():
    listed = "a-Q8_0.gguf", "a-Q4_K_M.gguf", "sub/a-Q4_K_M.gguf", "b-Q5_0.gguf"
    assert picked(":q8_0", *listed) == "a-Q8_0.gguf"
    assert picked(":sub/a-Q4_K_M.gguf", *listed) == "sub/a-Q4_K_M.gguf"
    with pytest.raises(HubChoiceNeeded) as needed:
        picked(":Q4_K_M", *listed)
    assert len(needed.value.choices) == 2
    with pytest.raises(HubFileMissing) as missing:
        picked(":Q5_1", *listed)
    assert missing.value.near == ("b-Q5_0.gguf",)
    with pytest.raises(HubFileMissing) as missing:
        picked(":a-q8_0.gguf", *listed)
    assert missing.value.near[0] == "a-Q8_0.gguf"
    with pytest.raises(HubFileMissing) as missing:
        picked(":nothing", *listed)
    assert missing.value.near == ()
    assert "b-Q5_0.gguf (0.0 MB)" in missing.value.remedy


def test_helper_files_are_no_choices():
    helpers = "mmproj-a-f16.gguf", "a.mmproj-Q8_0.gguf", "imatrix.gguf", "a-imatrix.gguf", "imatrix_x.gguf"
    assert gguf.models(files(*helpers)) == ()
    assert picked("", "a-Q8_0.gguf", *helpers) == "a-Q8_0.gguf"
    assert picked("", "a-imatrix-Q8_0.gguf") == "a-imatrix-Q8_0.gguf"  # a model made with one
    with pytest.raises(HubFileMissing):
        picked(":imatrix.gguf", "a-Q8_0.gguf", *helpers)


def test_a_split_model_is_one_choice():
    parts = [f"a-Q8_0-{i:05}-of-00003.gguf" for i in (3, 1, 2)]
    (model,) = gguf.models(files(*parts, "a-Q5_0-00001-of-00002.gguf", "b-00001-of-99999.gguf"))
    assert [file.name for file in model.files] == sorted(parts)
    assert model.choice == HubChoice("a-Q8_0-00001-of-00003.gguf", 3000, 3)
    for selector in ("", ":Q8_0", *(f":{part}" for part in parts)):
        assert picked(selector, *parts) == "a-Q8_0-00001-of-00003.gguf"
    with pytest.raises(HubFileMissing):  # a part is not there
        picked(":Q5_0", *parts, "a-Q5_0-00001-of-00002.gguf")


def test_the_files_of_a_safetensors_model():
    have = (
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "modeling.py",
        "tokenizer.json",
        "a/x.json",
    )
    listed = names.listing("c", files(*have))
    assert safetensors.fixed_files("o/n", listed) == ("config.json", "tokenizer.json", "model.safetensors")
    split = names.listing(
        "c", files("model.safetensors.index.json", "m-1.safetensors", "m-2.safetensors", "x.py")
    )
    assert safetensors.fixed_files("o/n", split) == ("model.safetensors.index.json",)
    index = {"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}
    found = safetensors.shards("o/n", split, json.dumps(index).encode())
    assert found == ("m-1.safetensors", "m-2.safetensors")


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"{}", b'{"weight_map": 3}', b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": []}}',
     b'{"weight_map": {"a": "x.py"}}', b'{"weight_map": {"a": "../m.safetensors"}}', b"[" * 100_000,
     b'{"weight_map": {"a": "absent.safetensors"}}', b'{"weight_map": {"a": 1, "b": "m.safetensors"}}'],
)  # fmt: skip
def test_a_hostile_index_is_refused(index):
    listed = names.listing("c", files("model.safetensors.index.json", "m.safetensors", "x.py"))
    with pytest.raises(HubModelMissing):
        safetensors.shards("o/n", listed, index)


def test_pickles_are_refused():
    with pytest.raises(PickleRefused) as caught:
        safetensors.fixed_files("o/n", names.listing("c", files("pytorch_model.bin", "config.json")))
    assert ".safetensors" in caught.value.remedy
    with pytest.raises(HubModelMissing):
        safetensors.fixed_files("o/n", names.listing("c", files("config.json", "adapter.safetensors")))
    with pytest.raises(HubModelMissing):
        safetensors.fixed_files("o/n", names.listing("c", files("README.md")))


@pytest.mark.parametrize(
    "name", ["../x.gguf", "/x.gguf", "a/../x.gguf", "a\\x.gguf", "", "./x", "x\0", "x\x1b[31m", "y" * 401]
)
def test_names_that_could_lead_elsewhere_are_left_out(name):
    assert not names.is_safe(name)
    assert names.listing("c", files("ok.gguf", name)).files == files("ok.gguf")


@pytest.mark.parametrize(
    "error",
    [
        MalformedHubReference("hf:x", "why"),
        errors.HubRepositoryMissing("o/n"),
        errors.HubRevisionMissing("o/n", "r"),
        HubFileMissing("o/n", "w", ("a",), (HubChoice("a", 1),)),
        HubFileMissing("o/n", "w"),
        HubChoiceNeeded("o/n", None, (HubChoice("a", None), HubChoice("b", 2_500_000_000, 2)) * 30),
        HubModelMissing("o/n"),
        PickleRefused("o/n", ("a.bin",) * 9),
        *(
            errors.HubAccessDenied("o/n", reason, sent, "detail")
            for reason in ("gated", "private", "token", "forbidden")
            for sent in (True, False)
        ),
        errors.HubUnreachable("hf:o/n", "r", offline=True, cached=("a",)),
        errors.HubUnreachable("hf:o/n", "r"),
        errors.HubRateLimited("o/n", 3, token_sent=True),
        errors.HubRateLimited("o/n", None, token_sent=False),
        errors.HubDownloadFailed("o/n", "f", "r"),
        errors.HubDiskFull("/x", 2, 1),
        errors.HubCacheNotWritable("/x", "r"),
    ],
)
def test_errors_are_data(error):
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, OstinatoError)
    assert (type(again), again.fields(), str(again)) == (type(error), error.fields(), str(error))
    assert isinstance(error, OSError | ValueError)
    assert str(error)
    assert error.remedy.endswith((".", "?"))


def test_choices_are_shown_with_sizes():
    error = HubChoiceNeeded("o/n", "Q8_0", (HubChoice("a", 1_500_000), HubChoice("b", 2_500_000_000, 2)))
    assert str(error) == "the repository o/n has 2 GGUF models called 'Q8_0'"
    assert error.remedy == (
        "Name one of them as hf:o/n:FILE. FILE may be: a (1.5 MB), b (2.5 GB in 2 files)."
    )

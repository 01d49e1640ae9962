"""A Hugging Face folder, against GPT2BPETokenizer on the same vocabulary. No connection is ever tried."""

import json
import socket
import sys

import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer
from megatron_zero.data.hf_tokenizer import HFTokenizer
from megatron_zero.data.tokenizer import build_tokenizer

REMOTE_CODE = "from transformers import GPT2Tokenizer\n\n\nclass OwnTokenizer(GPT2Tokenizer):\n    pass\n"


@pytest.fixture(autouse=True)
def tried(monkeypatch, tmp_path):
    """The connections that were tried, which fail; caches go to the test's folder."""
    pytest.importorskip("transformers", reason="HFTokenizer is an optional part")
    found = []

    def refuse(*args, **kwargs):
        found.append(args)
        raise OSError("this test has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield found
    assert found == []


@pytest.fixture
def tiny(tmp_path):
    """A folder in the old layout: vocab.json, merges.txt and the settings."""
    write_bpe_files(tmp_path)
    write_settings(tmp_path)
    return tmp_path


def write_settings(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **settings}))


def test_ids_equal_those_of_our_own(tiny):
    ours, theirs = GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt"), HFTokenizer(tiny)
    assert (theirs.vocab_size, theirs.eod) == (ours.vocab_size, ours.eod)
    for text in ("", "the the abc", " caf\u00e9 \n", f"a{END_OF_TEXT}b", "a , b 's"):
        ids = ours.encode(text)
        assert theirs.encode(text) == theirs.encode_array(text).tolist() == ids
        assert theirs.decode(ids) == text


def test_goldens_are_exact(shared_dir, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((shared_dir / f"data/gpt2-{name}").read_bytes())
    write_settings(tmp_path)
    special, plain = HFTokenizer(tmp_path), HFTokenizer(tmp_path, special_tokens=False)
    assert (special.vocab_size, special.eod) == (50257, 50256)
    for case in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text()):
        assert special.encode(case["text"]) == case["ids_special"]
        assert plain.encode(case["text"]) == case["ids"]
        assert special.decode(case["ids_special"]) == case["text"]


def test_special_tokens_may_be_plain_text(tiny):
    text = f"a{END_OF_TEXT}b"
    ours = GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt", special_tokens=False)
    assert HFTokenizer(tiny, special_tokens=False).encode(text) == ours.encode(text)
    assert HFTokenizer(tiny).encode(text)[1] == HFTokenizer(tiny).eod


def test_added_tokens_are_counted(tiny):
    write_settings(
        tiny,
        added_tokens_decoder={
            str(len(VOCABULARY) + place): {"content": content, "special": True, "normalized": False, "lstrip": False}
            | {"rstrip": False, "single_word": False}
            for place, content in enumerate(["<one>", "<two>"])
        },
    )
    tokenizer = HFTokenizer(tiny)
    assert tokenizer.vocab_size == len(VOCABULARY) + 2
    assert tokenizer.encode("<two>") == [len(VOCABULARY) + 1]


def test_no_token_is_put_around_a_text(tiny):
    """A bos that the tokenizer would add is left out, as in Megatron-core; a saved maximum cuts nothing."""
    from tokenizers import Tokenizer, processors

    whole = Tokenizer.from_str(HFTokenizer(tiny)._tokenizer.backend_tokenizer.to_str())
    whole.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, len(VOCABULARY) - 1)]
    )
    whole.enable_truncation(3)
    whole.save(str(tiny / "tokenizer.json"))
    write_settings(tiny, tokenizer_class="PreTrainedTokenizerFast", eos_token=END_OF_TEXT, model_max_length=3)
    tokenizer = HFTokenizer(tiny)
    assert tokenizer._tokenizer("a").input_ids[0] == tokenizer.eod
    assert tokenizer.encode("the abc the") == GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt").encode(
        "the abc the"
    )


def test_tokenizer_without_an_end_is_refused(tiny):
    HFTokenizer(tiny)._tokenizer.backend_tokenizer.save(str(tiny / "tokenizer.json"))
    write_settings(tiny, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ConfigError, match=r"--tokenizer-model .* has no eos_token, .* tokenizer_config\.json"):
        HFTokenizer(tiny)


def test_lone_surrogate_is_an_error(tiny):
    with pytest.raises(UnicodeEncodeError):
        HFTokenizer(tiny).encode("a\ud83d")


@pytest.mark.parametrize(
    "files,message",
    [
        ({}, "transformers cannot load it"),
        ({"tokenizer.json": "{"}, "transformers cannot load it"),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}'},
            "transformers (finds no vocabulary in it|cannot load it)",
        ),
    ],
    ids=["empty", "truncated", "settings-only"],
)
def test_folder_without_a_tokenizer_is_named(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"--tokenizer-model {tmp_path}: {message}"):
        HFTokenizer(tmp_path)


def test_code_in_the_folder_runs_only_when_trusted(tiny, monkeypatch):
    (tiny / "own.py").write_text(REMOTE_CODE)
    write_settings(tiny, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tiny / "cache"))
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(ConfigError, match="--trust-remote-code lets it run; read that code first"):
        HFTokenizer(tiny)
    config = TokenizerConfig("HFTokenizer", tokenizer_model=str(tiny), trust_remote_code=True)
    assert build_tokenizer(config).encode("the") == [VOCABULARY.index("the")]


@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_code_of_another_repository_is_not_fetched(tiny, trust_remote_code):
    auto_map = {"AutoTokenizer": ["somebody/something--own.OwnTokenizer", None]}
    write_settings(tiny, tokenizer_class="OwnTokenizer", auto_map=auto_map)
    message = "names code of the repository somebody/something" if trust_remote_code else "cannot load it"
    with pytest.raises(ConfigError, match=f"--tokenizer-model .*{message}"):
        HFTokenizer(tiny, trust_remote_code=trust_remote_code)


def test_core_s_name_builds_the_same(tiny):
    config = TokenizerConfig("HuggingFaceTokenizer", tokenizer_model=str(tiny))
    tokenizer = build_tokenizer(config, special_tokens=False)
    assert isinstance(tokenizer, HFTokenizer)
    assert tokenizer.encode(END_OF_TEXT) != [tokenizer.eod]


def test_missing_package_is_named_with_the_way_out(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs the package transformers, .* pip install transformers, or use GPT2BPE"):
        HFTokenizer(tiny)

"""HFTokenizer over a local folder gives GPT-2's ids; everything else it is given is refused by name."""

import json
import shutil

import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt2_bpe import GPT2BPETokenizer
from megatron_zero.data.hf_tokenizer import HFTokenizer
from megatron_zero.data.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="the optional package transformers is not installed")


def folder_of(path, vocab_file, merge_file, **config):
    """The files of a GPT-2 tokenizer as transformers wants them."""
    path.mkdir()
    shutil.copy(vocab_file, path / "vocab.json")
    shutil.copy(merge_file, path / "merges.txt")
    end = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    settings = {"tokenizer_class": "GPT2Tokenizer", **end, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.usefixtures("transformers")
def test_ids_are_those_of_gpt2(shared_dir, tmp_path):
    files = shared_dir / "data/gpt2-vocab.json", shared_dir / "data/gpt2-merges.txt"
    folder = folder_of(tmp_path / "gpt2", *files)
    for name in ("HFTokenizer", "HuggingFaceTokenizer"):
        ours = GPT2BPETokenizer(*files)
        theirs = build_tokenizer(TokenizerConfig(name, tokenizer_model=str(folder)))
        assert (theirs.vocab_size, theirs.eod) == (ours.vocab_size, ours.eod) == (50257, 50256)
        for entry in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text()):
            assert theirs.encode(entry["text"]) == entry["ids_special"]
            assert theirs.decode(entry["ids_special"]) == entry["text"]
    plain = HFTokenizer(folder, trust_remote_code=False, special_tokens=False)
    for entry in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text()):
        assert plain.encode(entry["text"]) == entry["ids"]


@pytest.mark.usefixtures("transformers")
def test_small_folder_works_without_reference_data(tmp_path):
    tokenizer = HFTokenizer(folder_of(tmp_path / "small", *write_bpe_files(tmp_path)), trust_remote_code=False)
    assert tokenizer.vocab_size == len(VOCABULARY)
    assert [VOCABULARY[token] for token in tokenizer.encode("the the")] == ["the", "\u0120the"]
    assert tokenizer.eod == len(VOCABULARY) - 1
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode("\ud83d")


@pytest.mark.usefixtures("transformers")
def test_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"--tokenizer-model .*empty: transformers cannot read"):
        HFTokenizer(tmp_path / "empty", trust_remote_code=False)


def test_name_of_a_hub_is_not_looked_up():
    config = TokenizerConfig("HFTokenizer", tokenizer_model="openai-community/gpt2")
    with pytest.raises(ConfigError, match=r"--tokenizer-model openai-community/gpt2: .* a local folder"):
        build_tokenizer(config)


def test_missing_package_is_named_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match="needs the package transformers: pip install transformers"):
        HFTokenizer(tmp_path, trust_remote_code=False)

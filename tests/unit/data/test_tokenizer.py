"""The null tokenizer, and which tokenizer the flags name."""

import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.tokenizer import NullTokenizer, build_tokenizer


def test_null_tokenizer_has_one_id_more_than_vocab_size():
    tokenizer = NullTokenizer(50)
    assert (tokenizer.vocab_size, tokenizer.eod) == (51, 50)
    assert tokenizer.encode(" 0 7\n49 ") == [0, 7, 49]
    assert tokenizer.decode([0, 7, 49]) == "0 7 49"
    assert tokenizer.encode("") == []


@pytest.mark.parametrize(
    "text,message",
    [
        ("51", "token id 51 is not 0 to 50"),
        ("-1", "token id -1 is not 0 to 50"),
        ("1 a", "'a' is no token id; .*whole numbers"),
        ("1.5", r"'1\.5' is no token id"),
        ("\u0663", "is no token id"),
        ("1_0", "is no token id"),
    ],
)
def test_null_tokenizer_refuses_what_is_no_id(text, message):
    with pytest.raises(ValueError, match=message):
        NullTokenizer(50).encode(text)


def test_gpt2_is_built_from_its_two_files(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    config = TokenizerConfig(vocab_file=str(vocab_file), merge_file=str(merge_file))
    tokenizer = build_tokenizer(config)
    assert tokenizer.vocab_size == len(VOCABULARY)
    assert tokenizer.encode("<|endoftext|>") == [tokenizer.eod] == [len(VOCABULARY) - 1]
    assert len(build_tokenizer(config, special_tokens=False).encode("<|endoftext|>")) > 1


@pytest.mark.parametrize(
    "config,message",
    [
        (TokenizerConfig("NullTokenizer"), "--vocab-size None"),
        (TokenizerConfig("NullTokenizer", vocab_size=0), "--vocab-size 0"),
        (TokenizerConfig(), "--vocab-file is not given; --tokenizer-type GPT2BPETokenizer needs it"),
        (TokenizerConfig(vocab_file="nowhere.json"), r"--vocab-file nowhere\.json: there is no such file"),
        (TokenizerConfig("GPTSentencePieceTokenizer"), "--tokenizer-model is not given"),
        (
            TokenizerConfig("SentencePieceTokenizer", tokenizer_model="nowhere"),
            "--tokenizer-model nowhere: there is no",
        ),
        (TokenizerConfig("HFTokenizer"), "--tokenizer-model is not given; --tokenizer-type HFTokenizer needs it"),
        (TokenizerConfig("HFTokenizer", tokenizer_model="gpt2"), "--tokenizer-model gpt2: .* names of hubs are not"),
        (TokenizerConfig("Llama2Tokenizer", tokenizer_model="."), r"--tokenizer-model \. is a folder; name the file"),
        (TokenizerConfig("TikTokenizer", tokenizer_model=__file__), "--tokenizer-type TikTokenizer is not known"),
    ],
)
def test_missing_setting_is_named_by_flag(config, message):
    with pytest.raises(ConfigError, match=message):
        build_tokenizer(config)

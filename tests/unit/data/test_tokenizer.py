"""The null tokenizer, and which tokenizer the flags name."""

import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.derive import padded_vocab_size
from megatron_zero.config.fields import ConfigError, knobs
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
        ("51", "token id 51 is not 0 to 50, the ids of --vocab-size 50"),
        ("-1", "token id -1 is not"),
        ("9" * 5000, "token id 9{40} is not"),
        ("0 a 1", "word 'a' is not a token id; NullTokenizer reads numbers separated by white space"),
        ("1.5", "word '1.5' is not"),
        ("1_0", "word '1_0' is not"),
        ("\u0663", "word '\u0663' is not"),
        ("x" * 5000, f"word '{'x' * 40}' is not"),
        ("\ud83d", "is not a token id"),
    ],
)
def test_null_tokenizer_refuses_what_is_no_id(text, message):
    with pytest.raises(ValueError, match=message):
        NullTokenizer(50).encode(text)


def test_array_has_the_ids_of_the_list():
    ids = NullTokenizer(2**40).encode_array(f"0 {2**40}")
    assert ids.tolist() == [0, 2**40]
    assert NullTokenizer(5).encode_array("").shape == (0,)


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
        (TokenizerConfig("NullTokenizer"), "^--tokenizer-type NullTokenizer needs --vocab-size$"),
        (TokenizerConfig("NullTokenizer", vocab_size=0), "--vocab-size 0"),
        (TokenizerConfig(), "^--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file$"),
        (TokenizerConfig(vocab_file="v"), "^--tokenizer-type GPT2BPETokenizer needs --merge-file$"),
        (TokenizerConfig(vocab_file="nowhere.json", merge_file="m"), r"--vocab-file nowhere\.json: there is no such file"),
        (TokenizerConfig("GPTSentencePieceTokenizer"), "GPTSentencePieceTokenizer needs --tokenizer-model$"),
        (
            TokenizerConfig("SentencePieceTokenizer", tokenizer_model="nowhere"),
            "--tokenizer-model nowhere: there is no",
        ),
        (TokenizerConfig("Llama2Tokenizer"), "--tokenizer-type Llama2Tokenizer needs --tokenizer-model$"),
        (TokenizerConfig("HFTokenizer"), "--tokenizer-type HFTokenizer needs --tokenizer-model$"),
        (TokenizerConfig("HFTokenizer", tokenizer_model="gpt2"), "--tokenizer-model gpt2 is not a folder; .* no"),
        (TokenizerConfig("HuggingFaceTokenizer", tokenizer_model=__file__), r"test_tokenizer\.py is not a folder"),
        (TokenizerConfig("TikTokenizer", tokenizer_model=__file__), "--tokenizer-type TikTokenizer is not known"),
    ],
)
def test_wrong_setting_is_named_by_flag(config, message):
    with pytest.raises(ConfigError, match=message):
        build_tokenizer(config)


@pytest.mark.parametrize("kind", ["GPTSentencePieceTokenizer", "SentencePieceTokenizer", "Llama2Tokenizer"])
def test_folder_in_place_of_a_model_is_named(tmp_path, kind):
    with pytest.raises(ConfigError, match=f"--tokenizer-model {tmp_path} is a folder; --tokenizer-type {kind} needs a file"):
        build_tokenizer(TokenizerConfig(kind, tokenizer_model=str(tmp_path)))


@pytest.mark.parametrize("flag,field", [("--vocab-file", "vocab_file"), ("--merge-file", "merge_file")])
def test_folder_in_place_of_a_gpt2_file_is_named(tmp_path, flag, field):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    paths = {"vocab_file": str(vocab_file), "merge_file": str(merge_file), field: str(tmp_path)}
    with pytest.raises(ConfigError, match=f"{flag} {tmp_path} is a folder"):
        build_tokenizer(TokenizerConfig(**paths))


def test_every_type_that_the_flag_takes_is_built_or_asks_for_its_files():
    for kind in knobs(TokenizerConfig)["tokenizer_type"].choices:
        with pytest.raises(ConfigError, match=f"^--tokenizer-type {kind} needs --"):
            build_tokenizer(TokenizerConfig(kind))


@pytest.mark.parametrize("vocab_size,tp,padded", [(50257, 1, 50304), (50257, 2, 50432), (32000, 1, 32000), (51, 1, 128)])
def test_vocab_size_feeds_the_padding(vocab_size, tp, padded):
    assert padded_vocab_size(vocab_size, divisible_by=128, tp=tp) == padded


def test_each_tokenizers_vocab_size_feeds_the_padding(shared_dir):
    gpt2 = {"vocab_file": shared_dir / "data/gpt2-vocab.json", "merge_file": shared_dir / "data/gpt2-merges.txt"}
    model = {"tokenizer_model": shared_dir / "data/sentencepiece/bpe_2k_bytefallback.model"}
    for kind, paths, own, padded in (
        ("GPT2BPETokenizer", gpt2, 50257, 50304),
        ("GPTSentencePieceTokenizer", model, 2000, 2048),
        ("SentencePieceTokenizer", model, 2005, 2048),
        ("Llama2Tokenizer", model, 2000, 2048),
    ):
        config = TokenizerConfig(kind, **{name: str(path) for name, path in paths.items()})
        assert build_tokenizer(config).vocab_size == own
        assert padded_vocab_size(own, divisible_by=128, tp=1) == padded

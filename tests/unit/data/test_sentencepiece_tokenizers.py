"""Megatron's two wrappers of a SentencePiece model, against the ids that Megatron-DeepSpeed's own gave."""

import io
import json

import pytest
import sentencepiece

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.sentencepiece_tokenizers import (
    GPTSentencePieceTokenizer,
    Llama2Tokenizer,
    SentencePieceTokenizer,
)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """Trainer options -> path of a small model."""

    def make(**options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the cat sat on the mat", "a dog and a cat"] * 5),
            model_writer=model,
            model_type="bpe",
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        path = tmp_path_factory.mktemp("model") / "tiny.model"
        path.write_bytes(model.getvalue())
        return path

    return make


def test_ids_equal_those_of_megatron(shared_dir):
    wrappers = {kind.__name__: kind for kind in (GPTSentencePieceTokenizer, SentencePieceTokenizer)}
    goldens = json.loads((shared_dir / "data/goldens/tokenizer/sp_megatron_wrappers.json").read_text())
    for model, cases in goldens.items():
        for case in cases:
            tokenizer = wrappers[case["megatron_type"]](shared_dir / f"data/sentencepiece/{model}.model")
            assert (tokenizer.vocab_size, tokenizer.eod) == (case["vocab_size"], case["eod"])
            for example in case["examples"]:
                assert tokenizer.encode(example["text"]) == example["ids"]


@pytest.mark.parametrize("model", ["bpe_2k_bytefallback", "unigram_1k"])
def test_ids_and_text_equal_those_of_sentencepiece(shared_dir, model):
    goldens = json.loads((shared_dir / f"data/goldens/tokenizer/sp_{model}.json").read_text())
    tokenizer = GPTSentencePieceTokenizer(shared_dir / f"data/sentencepiece/{model}.model")
    assert tokenizer.vocab_size == goldens["vocab_size"]
    for case in goldens["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]


def test_special_tokens_get_ids_behind_the_model(model_of):
    path = model_of()
    own = GPTSentencePieceTokenizer(path)
    wrapped = SentencePieceTokenizer(path)
    # <CLS> <SEP> <EOD> <MASK> and <PAD> are new, <s> and </s> the model has
    assert wrapped.vocab_size == own.vocab_size + 5
    assert wrapped.eod == own.vocab_size + 2
    assert wrapped.encode("<CLS><MASK></s>") == [own.vocab_size, own.vocab_size + 3, own.eod]
    assert wrapped.decode(wrapped.encode("the cat<EOD>a dog<SEP>")) == "the cat<EOD>a dog<SEP>"


def test_special_tokens_may_be_plain_text(model_of):
    path = model_of()
    plain = SentencePieceTokenizer(path, special_tokens=False)
    assert plain.encode("the cat<EOD>") == GPTSentencePieceTokenizer(path).encode("the cat<EOD>")


def test_model_without_an_end_is_refused_or_given_one(model_of):
    """H34: no eos piece. The GPT wrapper has nothing to end a document with; the other adds <EOD>."""
    path = model_of(eos_id=-1)
    with pytest.raises(ConfigError, match="has no end-of-sentence piece"):
        GPTSentencePieceTokenizer(path)
    assert SentencePieceTokenizer(path).eod >= GPTSentencePieceTokenizer(model_of()).vocab_size - 1


@pytest.mark.parametrize("model", ["bpe_2k_bytefallback", "unigram_1k"])
def test_llama2_puts_bos_before_the_ids_of_sentencepiece(shared_dir, model):
    goldens = json.loads((shared_dir / f"data/goldens/tokenizer/sp_{model}.json").read_text())
    path = shared_dir / f"data/sentencepiece/{model}.model"
    tokenizer, own = Llama2Tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert (tokenizer.vocab_size, tokenizer.eod) == (goldens["vocab_size"], own.eos_id())
    for case in goldens["cases"]:
        assert tokenizer.encode(case["text"]) == [own.bos_id(), *case["ids"]]
        assert tokenizer.encode_array(case["text"]).tolist() == [own.bos_id(), *case["ids"]]
        assert tokenizer.decode([*tokenizer.encode(case["text"]), tokenizer.eod]) == case["decoded"]


def test_llama2_knows_no_literal_pieces(model_of):
    tokenizer = Llama2Tokenizer(model_of())
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("</s><s>")[1:] == GPTSentencePieceTokenizer(model_of()).encode("</s><s>")
    assert tokenizer.eod not in tokenizer.encode("</s>")


@pytest.mark.parametrize(
    "options,missing",
    [
        ({"bos_id": -1}, "no beginning-of-sentence piece"),
        ({"eos_id": -1}, "no end-of-sentence piece"),
        ({"bos_id": -1, "eos_id": -1}, "no beginning and no end-of-sentence piece"),
    ],
)
def test_llama2_needs_bos_and_eos_but_no_pad(model_of, options, missing):
    assert Llama2Tokenizer(model_of(pad_id=-1)).eod == 2
    with pytest.raises(ConfigError, match=f"--tokenizer-model .* has {missing}, which Llama2Tokenizer"):
        Llama2Tokenizer(model_of(**options))


@pytest.mark.parametrize("kind", [GPTSentencePieceTokenizer, SentencePieceTokenizer, Llama2Tokenizer])
def test_lone_surrogate_is_a_value_error(model_of, kind):
    with pytest.raises(ValueError):
        kind(model_of()).encode("a\ud83d")


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_file_that_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--tokenizer-model .*bad\.model is not a SentencePiece model"):
        GPTSentencePieceTokenizer(path)

"""Every shape comment is true on its line, and a wrong one would be detected."""

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from labml_bert.bert import BertConfig, BertModel
from labml_bert.data.tokenizers import character_tokenizer, word_tokenizer, wordpiece_tokenizer
from labml_bert.heads import BertForSequenceClassification
from labml_bert.labeled_text import Example
from labml_bert.models import BertForMaskedLM
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from tests.support.shape_check import Checker, ShapeError, shape_comments, short_loops

SOURCES = Path(__file__).parent.parent / "labml_bert"
# All sizes are different, so that no letter can be mistaken for another.
B, T, D, H, V, K, C = 3, 7, 20, 4, 29, 5, 6


def small_config() -> BertConfig:
    return BertConfig(
        vocab_size=V,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=44,
        max_position_embeddings=11,
    )


def run_bert(checker: Checker) -> None:
    m = checker.module
    config = small_config()
    ids = torch.randint(V, (B, T))
    for attentions in (False, True):
        m.BertModel(config)(ids, torch.ones(B, T), ids % 2, output_attentions=attentions)
    positions = torch.tensor([[1, 4]]).expand(B, 2)
    for pooler in (False, True):
        m.BertModel(config, pooler).eval()(ids, output_positions=positions)
    with torch.autocast("cpu", torch.bfloat16):
        m.BertModel(config)(ids)
    checker.fixed = {}
    with short_loops(m):
        m.main()


def run_mlm(checker: Checker) -> None:
    m = checker.module
    ids = torch.randint(2, V, (B, T))
    word_ids = torch.arange(T).expand(B, T) // 2
    for cap in (None, 2):
        masker = m.TokenMasker(V, 1, [0, 1], mlm_probability=0.5, max_predictions_per_seq=cap)
        masker(ids)
        masked_batch = masker(ids, torch.ones(B, T), word_ids)
    embedding = torch.nn.Embedding(V, D)
    model = m.MaskedLM(lambda x: (embedding(x),), embedding)
    model(*masked_batch)
    model(masked_batch.input_ids)
    m.masked_lm_positions(masked_batch.labels)
    checker.fixed = {}
    with short_loops(m):
        m.main()


def run_nsp(checker: Checker) -> None:
    m = checker.module
    pair = m.SentencePair([1] * T, [0] * 3 + [1] * (T - 3), 0)
    batch = m.collate([pair] * B)
    labels = batch.pop("next_sentence_label")
    assert batch["input_ids"].shape == (B, T)
    m.next_sentence_loss(m.BertOnlyNSPHead(D)(torch.zeros(B, D)), labels)
    checker.fixed = {}
    with short_loops(m):
        m.main()


def run_modern(checker: Checker) -> None:
    m = checker.module
    # Heads of 6 dimensions, because RoPE needs an even number, and a window that is shorter than the rows.
    config = m.ModernBertConfig(V, 6 * H, 3, H, 44, local_attention=4, pad_token_id=0)
    ids = torch.randint(1, V, (B, T))
    model = m.ModernBertForMaskedLM(config)
    labels = torch.where(torch.arange(T) < 2, ids, -100)
    for mask in (None, torch.ones(B, T)):
        model(ids, attention_mask=mask, position_ids=torch.arange(T)[None])
        model(ids, labels, attention_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        model(ids, attention_mask=torch.ones(B, T))
    checker.fixed = {}
    with short_loops(m):
        m.main()


def run_windows(checker: Checker) -> None:
    m = checker.module
    windows = m.random_windows(torch.arange(100), B, T, 11, torch.Generator())
    assert windows.input_ids.shape == windows.position_ids.shape == (B, T)
    m.put_cls_sep(windows.input_ids, (1, 2))


def run_ngrams(checker: Checker) -> None:
    checker.module.ngram_baselines(torch.randint(V, (500,)), torch.randint(V, (200,)), V, [0])


def run_fill_mask(checker: Checker) -> None:
    m = checker.module
    tokenizer: Tokenizer = character_tokenizer(["".join(chr(97 + i) for i in range(V - 5))])
    model = BertForMaskedLM(small_config())
    m.fill_mask(model, tokenizer, "ab[MASK]defg")


def run_score(checker: Checker) -> None:
    m = checker.module
    tokenizer: Tokenizer = character_tokenizer(["".join(chr(97 + i) for i in range(V - 5))])
    model = BertForMaskedLM(small_config())
    # A sequence of eight tokens has six to score, three at a time.
    m.token_log_probs(model, tokenizer, "[CLS]abcdef[SEP]", mask_rest_of_word=True, batch_size=B)


def run_embed(checker: Checker) -> None:
    m = checker.module
    tokenizer: Tokenizer = word_tokenizer([" ".join(f"word{i}" for i in range(V - 5))] * 2)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))]
    )
    texts = [f"word{i} " * (T - 1) for i in range(B)]
    modern = ModernBertConfig(V, D, 1, 2, 44, pad_token_id=0)
    for model in BertForMaskedLM(small_config()), ModernBertForMaskedLM(modern):
        m.pool_texts(model, tokenizer, texts, "cls")
        m.pool_texts(model, tokenizer, texts)
    vectors = torch.randn(B, D)
    m.ranks(m.simcse_loss(vectors, vectors) * torch.ones(B, B))
    checker.fixed = {"D": D}
    vectors = torch.randn(7, D)
    m.mean_cosine(vectors)
    m.fit_whitening(vectors)(vectors)
    m.embed(model, tokenizer, texts)


def run_new_tokens(checker: Checker) -> None:
    for model in (
        BertForMaskedLM(small_config()),
        ModernBertForMaskedLM(ModernBertConfig(V, D, 1, 2, 44, pad_token_id=0)),
    ):
        tokenizer = mock.Mock(get_vocab_size=lambda: V + 2)
        checker.module.add_embeddings(model, [[5, 6], [6, 7, 7]], tokenizer)


def run_attention_map(checker: Checker) -> None:
    m = checker.module
    tokenizer: Tokenizer = character_tokenizer(["".join(chr(97 + i) for i in range(V - 5))])
    m.attention_map(BertForMaskedLM(small_config()), tokenizer, "ab[MASK]defg")


def run_export(checker: Checker) -> None:
    m = checker.module
    model = BertForMaskedLM(small_config())
    inputs = m.example_inputs(model, B, T)
    m.Graph(model)(*inputs)
    m.EncoderGraph(model)(*inputs)
    checker.fixed = {"V": V}
    m.rounding_error(model)


def run_pretraining(checker: Checker) -> None:
    m = checker.module
    ids = torch.randint(1, V, (B, T))
    m.BertForMaskedLM(small_config())(ids, ids)
    m.BertForPreTraining(small_config())(ids, ids, torch.zeros(B, dtype=torch.long))


def run_pair_batches(checker: Checker) -> None:
    m = checker.module
    tokenizer = wordpiece_tokenizer(["ab abc b. c"], 20)
    rows = {
        "tokens": [[2, *[8] * (T - 3 - b), 3, 9, 3] for b in range(B)],
        "segment_ids": [[0] * (T - 1 - b) + [1, 1] for b in range(B)],
        "is_random_next": [False] * B,
    }
    generator = torch.Generator()
    for masking in (None, m.MaskingArguments(whole_word_mask=True)):
        collator = m.PairCollator(tokenizer, masking, T + 1, generator)
        next(m.PairBatches(Dataset.from_dict(rows), collator, B, generator))
    static = rows | {"masked_positions": [[1]] * B, "masked_labels": [[7]] * B}
    next(m.PairBatches(Dataset.from_dict(static), m.PairCollator(tokenizer, length=T + 1), B, generator))


def run_shards(checker: Checker) -> None:
    m = checker.module
    arguments = m.DatasetArguments(static_masking=m.MaskingArguments())
    tokenizer = wordpiece_tokenizer(["ab abc b. c"], 20)
    with TemporaryDirectory() as folder:
        shard = m.Shard(Path(folder) / "part", "", 0, ["a b. c.", "c. ab. a."])
        m.ShardWriter(tokenizer.to_str(), arguments).write(shard)


def run_heads(checker: Checker) -> None:
    m = checker.module
    ids, labels = torch.randint(1, V, (B, T)), torch.zeros(B, dtype=torch.long)
    names = [str(label) for label in range(K)]
    m.BertForSequenceClassification(small_config(), names)(ids, labels)
    m.BertForTokenClassification(small_config(), names)(ids, torch.zeros_like(ids))
    m.BertForQuestionAnswering(small_config())(ids, labels, labels)
    m.BertForMultipleChoice(small_config())(ids[:, None].expand(B, C, T), labels)


def run_lora(checker: Checker) -> None:
    m = checker.module
    model = BertModel(small_config())
    m.add_lora(model, r=4)
    model(torch.randint(1, V, (B, T)))
    m.merge_lora(model)


def run_finetuning(checker: Checker) -> None:
    m = checker.module
    # The special tokens fill up the vocabulary to V. Each text has five words, so a row has length T.
    tokenizer: Tokenizer = word_tokenizer([" ".join(f"word{i}" for i in range(V - 5))] * 2)
    examples = [Example("word1 word2 word3 word4 word5", label) for label in range(B)]
    rows = m.encode_examples(tokenizer, examples)
    model = BertForSequenceClassification(small_config(), [str(label) for label in range(K)])
    m.fine_tune(model, rows, 1e-3, epochs=1)
    m.predict(model, rows)
    m.EarlyStopping(model, rows, patience=1)

    def explode(*_: object) -> None:
        raise m.NonFiniteLossError("the loss is NaN")

    m.choose_learning_rate([1.0], examples * 5, K, explode)


def run_labeled_text(checker: Checker) -> None:
    m = checker.module
    examples = [m.Example("word", label) for label in range(B)]
    labels = torch.tensor([example.label for example in examples])
    m.score(torch.zeros(B, K), labels)
    m.confusion_matrix(torch.zeros(B, K), labels)
    checker.fixed = {}
    m.choose_hyperparameter([1.0], examples * 5, lambda _, rest, fifth: torch.zeros(len(fifth), K))


def run_classification_report(checker: Checker) -> None:
    m = checker.module
    examples = [Example("word", label) for label in range(B)]
    logits, labels = torch.zeros(B, K), [str(label) for label in range(K)]
    m.print_report(m.measure_scores(logits, labels, examples * 5, examples), logits, labels, examples)


def run_classify(checker: Checker) -> None:
    m = checker.module
    tokenizer: Tokenizer = word_tokenizer([" ".join(f"word{i}" for i in range(V - 5))] * 2)
    with TemporaryDirectory() as folder:
        model = BertForSequenceClassification(small_config(), [str(label) for label in range(K)])
        model.save_pretrained(Path(folder))
        tokenizer.save(f"{folder}/tokenizer.json")
        m.main(["predict", folder, *["word1 word2"] * B])


def run_bag_of_words(checker: Checker) -> None:
    m = checker.module
    examples = [m.Example(" ".join(f"word{i}" for i in range(11)), label) for label in range(K)]
    bag = m.BagOfWords(examples * 2, K, 1e-3)
    bag.predict(examples)


SCENARIOS = {
    "bert.py": (run_bert, {"B": B, "T": T, "D": D, "H": H, "I": 44, "V": V}),
    "mlm.py": (run_mlm, {"B": B, "T": T, "D": D, "V": V}),
    "nsp.py": (run_nsp, {"B": B, "T": T, "D": D}),
    "modern.py": (run_modern, {"B": B, "T": T, "D": 6 * H, "H": H, "d": 6, "I": 44, "V": V}),
    "models.py": (run_pretraining, {"B": B, "T": T, "D": D, "V": V}),
    "data/windows.py": (run_windows, {"B": B, "T": T}),
    "baselines/ngrams.py": (run_ngrams, {}),
    "data/pair_shards.py": (run_shards, {}),
    "data/pair_collator.py": (run_pair_batches, {"B": B, "T": T + 1}),
    "labeled_text.py": (run_labeled_text, {"K": K, "N": B}),
    "heads.py": (run_heads, {"B": B, "T": T, "D": D, "K": K, "C": C}),
    "lora.py": (run_lora, {"D": D}),
    "finetuning.py": (run_finetuning, {"B": B, "T": T, "K": K, "N": B}),
    "classification_report.py": (run_classification_report, {"K": K, "N": B}),
    "classify.py": (run_classify, {"K": K, "N": B}),
    "baselines/tfidf.py": (run_bag_of_words, {"N": K, "K": K}),
    # The model has two layers.
    "attention_map.py": (run_attention_map, {"L": 2, "H": H, "T": T}),
    "fill_mask.py": (run_fill_mask, {"T": T, "V": V}),
    "score.py": (run_score, {"B": B, "S": 8, "T": 6, "V": V}),
    "embed.py": (run_embed, {"B": B, "T": T, "D": D}),
    "new_tokens.py": (run_new_tokens, {"V": V, "D": D, "N": 2}),
    "export.py": (run_export, {"B": B, "T": T, "V": V, "D": D}),
}


def check(file: str, source: str | None = None) -> Checker:
    torch.manual_seed(0)
    run, fixed = SCENARIOS[file]
    checker = Checker(SOURCES / file, source, **fixed)
    run(checker)
    return checker


def test_every_file_with_shape_comments_is_checked() -> None:
    files = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if shape_comments(path.read_text())
    }
    assert files == set(SCENARIOS)


@pytest.mark.parametrize("file", SCENARIOS)
def test_all_shape_comments_run_and_are_true(file: str) -> None:
    assert check(file).not_run == []


@pytest.mark.slow("runs a module once for each of its comments")
@pytest.mark.parametrize(
    ("file", "line"),
    [(file, line) for file in SCENARIOS for line in shape_comments((SOURCES / file).read_text())],
)
def test_a_wrong_comment_is_detected(file: str, line: int) -> None:
    """Each comment in turn gets an extra dimension, then a size that occurs nowhere here."""
    lines = (SOURCES / file).read_text().splitlines(keepends=True)
    code, _, comment = lines[line - 1].rpartition("# (")
    dims = comment.rpartition(")")[0].split(", ")
    for wrong in ([*dims, "1"], [*dims[:-1], "9973"]):
        changed_lines = [*lines[: line - 1], f"{code}# ({', '.join(wrong)})\n", *lines[line:]]
        with pytest.raises(ShapeError, match=f"line {line}:"):
            check(file, "".join(changed_lines))


def test_a_comment_on_a_line_without_a_tensor_is_an_error() -> None:
    with pytest.raises(ShapeError, match="nothing here has a shape"):
        Checker(SOURCES / "bert.py", "import math\nif math:  # (B, T)\n    pass\n")

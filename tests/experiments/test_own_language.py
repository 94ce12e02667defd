"""A model for your own language, from a folder of text to a model that `transformers` loads."""

import random
import re
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from experiments import own_language
from labml_bert import fill_mask, prepare
from labml_bert.checksums import SUMS
from labml_bert.data.corpora import Corpus
from labml_bert.data.masked_text import MaskedText
from labml_bert.data.token_files import TokenizedCorpus
from labml_bert.data.tokenizers import wordpiece_tokenizer
from labml_bert.run.experiment import Run
from labml_bert.run.options import parse_options
from labml_bert.training.checkpoint import load_checkpoint
from labml_bert.training.trainer import Report, Trainer
from tests.support.runs import SIZES, main_in_process, run, small_text


def small_language(sentences: int) -> str:
    """Sentences from a small grammar, in a script that writes vowels as combining marks."""
    r = random.Random(0)
    nouns, verbs = ["কদম", "নদী", "বাগান", "মানুষ", "পাখি"], ["দেখে", "খোঁজে", "আঁকে"]
    lines = []
    for _ in range(sentences):
        ending = r.choice(["", "রা"])
        lines.append(f"সেই {r.choice(nouns)}{ending} আবার {r.choice(nouns)}{ending} {r.choice(verbs)}।")
    return "\n".join(lines)


@pytest.mark.long
@pytest.mark.processes
def test_your_own_language_from_text_to_a_filled_mask(tmp_path: Path) -> None:
    """The vowel marks survive tokenization, and the model learns which words fit a gap."""
    (tmp_path / "text").mkdir()
    for part in range(2):
        (tmp_path / "text" / f"{part}.txt").write_text(small_language(1500), encoding="utf-8")
    out = run(
        "own_language",
        *("--corpus", "text", *SIZES, "--steps=1200", "--schedule=8,16", "--hidden-size=64"),
        cwd=tmp_path,
    )
    assert " subwords, one per " in out
    (folder,) = tmp_path.glob("logs/*/*/")
    model, tokenizer = fill_mask.load_model(folder)
    text = "সেই নদী আবার পাখি দেখে।"
    assert tokenizer.decode(tokenizer.encode(text).ids).replace(" ।", "।") == text
    question = text.replace("দেখে", "[MASK]")
    best = fill_mask.fill_mask(model, tokenizer, question, 1)[0][0]
    assert best.token in {"দেখে", "খোঁজে", "আঁকে"}, "only a verb fits there"
    answer = transformers.pipeline("fill-mask", model=str(folder / "model"), top_k=1)(question)[0]
    assert answer["token_str"] == best.token


@pytest.mark.parametrize(
    ("words", "budget", "tokens_per_step"),
    [
        ([], "2,000 steps", 2048),
        (["--batch-tokens", "150", "--schedule", "100"], "2,000 steps", 100),
        (["--steps", "1"], "1 steps", None),
        (["--minutes", "0.5"], "0.5 min", None),
    ],
)
def test_the_budget_in_the_header(
    words: list[str],
    budget: str,
    tokens_per_step: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the header is tested: the training loop ends at once."""
    monkeypatch.setattr(Trainer, "steps", lambda *_, **__: iter(()))
    monkeypatch.setattr(Run, "finish", lambda *_: None)
    (tmp_path / "text.txt").write_text("some words here. " * 500)
    main_in_process(monkeypatch, tmp_path, "--corpus", "text.txt", *words, experiment="own_language")
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("  training "))
    assert line.split(maxsplit=1)[1].startswith(f"{budget}, ")
    passes = [int(number) for number in re.findall(r"about (\d+) passes over the text", out)]
    # The text has 2,000 tokens, and about a tenth of them is held out.
    assert passes == ([pytest.approx(2000 * tokens_per_step / 1800, rel=0.1)] if tokens_per_step else [])


@pytest.mark.parametrize("width", [64, 96, 128, 130, 256, 512, 768])
def test_a_width_gets_heads_that_fit(width: int) -> None:
    words = ["--corpus", "text.txt", "--hidden-size", str(width)]
    options = parse_options(own_language.Options, "own_language", "", words)
    options = own_language.set_defaults(options, 100_000, 1000)
    assert options.hidden_size == width and width % (2 * options.num_attention_heads) == 0
    options = parse_options(own_language.Options, "own_language", "", [*words, "--num-attention-heads", "2"])
    assert (options.hidden_size, options.num_attention_heads) == (width, 2)
    parse_options(own_language.Options, "own_language", "", ["--corpus", "x", "--num-attention-heads", "5"])


def test_model_sizes_grow_with_the_text() -> None:
    small, middle, large = (
        own_language.set_defaults(own_language.Options(), characters, 1000)
        for characters in (100_000, 21_000_000, 210_000_000)
    )
    for name in ("hidden_size", "num_hidden_layers", "steps"):
        assert getattr(small, name) < getattr(middle, name) < getattr(large, name)
    assert all(o.hidden_size % o.num_attention_heads == 0 for o in (small, middle, large))
    # Options that the user sets stay as they are.
    user_options = own_language.Options(hidden_size=64, minutes=2.0, vocab_size=900)
    options = own_language.set_defaults(user_options, 10_000, 800)
    assert (options.hidden_size, options.steps, options.minutes) == (64, None, 2.0)
    assert (options.vocab_size, small.vocab_size) == (900, 1000)
    # A width set by the user determines the options that depend on it; the batch size, the number of steps.
    wide = own_language.set_defaults(own_language.Options(hidden_size=768), 100_000, 1000)
    assert (wide.learning_rate, wide.num_attention_heads, wide.initializer_range) == (8e-4, 12, 0.02)
    batch = 2 * small.batch_tokens
    large_batch = own_language.set_defaults(own_language.Options(batch_tokens=batch), 21_000_000, 1000)
    assert large_batch.steps == middle.steps // 2


def test_the_vocabulary_grows_with_the_text_and_the_alphabet() -> None:
    def size_for(text: str) -> int:
        return own_language.default_vocab_size(Corpus("", [text], []))

    words = "abcdefghij "
    assert size_for(words) == 1000 < size_for(words * 50_000) < size_for(words * 2_000_000) == 30_000
    # A script with thousands of characters needs a larger vocabulary.
    assert size_for("".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 10) > 6000


@pytest.mark.processes
def test_what_is_learned_from_ids_that_have_changed_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ids are read from the file when they are needed, because they may not fit in memory."""
    (tmp_path / "text.txt").write_text("".join(small_text(2000, seed) for seed in range(3)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    prepare.main(["text.txt", "--output=tokens", "--vocab-size=120"])
    words = [*SIZES, "--corpus=tokens", "--steps=6", "--schedule=8", "--batch-tokens=64", "--threads=1"]
    words += ["--checkpoint-seconds=0"]
    main_in_process(monkeypatch, tmp_path, *words, experiment="own_language")
    (expected,) = Path("logs/own_language").iterdir()
    ids = Path("tokens/train.bin").read_bytes()
    report = Run.report

    def write_and_report(self: Run, what: Report) -> None:
        report(self, what)
        if what.step == 2:
            Path("tokens/train.bin").write_bytes(b"\7\0" * (len(ids) // 2))

    monkeypatch.setattr(Run, "report", write_and_report)
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main_in_process(monkeypatch, tmp_path, *words, experiment="own_language")
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert "train.bin has changed during the training; put the old file back; once this is fixed" in error
    assert len(error.splitlines()) == 1 and "resume with --resume logs/own_language/" in error
    monkeypatch.setattr(Run, "report", report)
    Path("tokens/train.bin").write_bytes(ids)
    (resumed,) = {*Path("logs/own_language").iterdir()} - {expected}
    main_in_process(monkeypatch, tmp_path, "--resume", resumed, experiment="own_language")
    a, b = (load_checkpoint(path)[1] for path in (expected, resumed))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.processes
@pytest.mark.parametrize("adds_cls_sep", [True, False])
def test_a_model_fits_the_tokenizer_of_prepared_tokens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    adds_cls_sep: bool,
) -> None:
    """`[PAD]` has another id than in our tokenizers, and not every tokenizer adds `[CLS]` and `[SEP]`."""
    text = "".join(small_text(2000, seed) for seed in range(3))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    names = ["the", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*text.split()} - {"the"})]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds_cls_sep:
        ends = [("[CLS]", 3), ("[SEP]", 4)]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    prepare.main(["text.txt", "--output=tokens", "--tokenizer=tokenizer.json"])
    assert "-m experiments.own_language --corpus tokens" in capsys.readouterr().out
    batches = []
    original = MaskedText.batch

    def remember(self: MaskedText, length: int) -> dict[str, torch.Tensor]:
        batches.append(original(self, length))
        return batches[-1]

    monkeypatch.setattr(MaskedText, "batch", remember)
    words = [*SIZES, "--corpus=tokens", "--steps=2", "--schedule=8", "--batch-tokens=64"]
    main_in_process(monkeypatch, tmp_path, *words, experiment="own_language")
    (folder,) = (tmp_path / "logs" / "own_language").iterdir()
    model, _ = fill_mask.load_model(folder)
    assert model.config.pad_token_id == 1
    assert (batches[0]["input_ids"][:, 0] == 3).all() == adds_cls_sep
    prepare.main(["text.txt", "--output=more", f"--tokenizer={folder / 'model'}"])
    assert "-m experiments.continue_pretraining --from logs/" in capsys.readouterr().out
    path = folder / "model" / "config.json"
    path.write_text(path.read_text("utf-8").replace("ForMaskedLM", "ForSequenceClassification"), "utf-8")
    (path.parent / SUMS).unlink()
    prepare.main(["text.txt", "--output=again", f"--tokenizer={folder / 'model'}"])
    assert "-m experiments.own_language --corpus again" in capsys.readouterr().out


def test_prepared_tokens_keep_their_tokenizer(tmp_path: Path) -> None:
    tokenizer = wordpiece_tokenizer(["some words here"], 60)
    ids = torch.zeros(1, dtype=torch.long)
    corpus = TokenizedCorpus("tokens", tokenizer, ids, ids, 9, 1, [], "", Path(), None)
    size = tokenizer.get_vocab_size()
    assert own_language.choose_tokenizer(corpus, None) is tokenizer
    assert own_language.choose_tokenizer(corpus, size) is tokenizer
    with pytest.raises(ValueError, match=f"is tokenized with {size} tokens; leave out --vocab-size"):
        own_language.choose_tokenizer(corpus, size + 1)
    text = Corpus("", ["some words here and there"], [])
    assert own_language.choose_tokenizer(text, 60).get_vocab_size() <= 60

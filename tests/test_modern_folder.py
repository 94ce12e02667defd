"""Folders of modern models travel between this project and `transformers`."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

from labml_bert import fill_mask
from labml_bert.checksums import SUMS
from labml_bert.data.tokenizers import character_tokenizer, save_tokenizer
from labml_bert.modern import ModernBertConfig, ModernBertForMaskedLM
from labml_bert.modern_folder import from_pretrained, read_config, save_pretrained
from labml_bert.stdout import printable
from tests.support.parity import TOLERANCE
from tests.support.small_models import byte_level_tokenizer

TEXT = ["The quick brown fox jumps over the lazy dog. 0123456789"]


def small_model(**changes: object) -> ModernBertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"vocab_size": 40, "local_attention": 4, "pad_token_id": 0, "initializer_range": 0.2}
    return ModernBertForMaskedLM(ModernBertConfig(**sizes | changes)).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_a_folder_of_ours_opens_in_transformers_and_comes_back(tmp_path: Path, period: int) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    ours = small_model(global_attn_every_n_layers=period, global_rope_theta=777.0)
    save_pretrained(ours, tmp_path / "ours")
    theirs = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "ours")
    ids = torch.randint(1, 40, (2, 20))
    with torch.no_grad():
        assert (ours(ids).logits - theirs(ids).logits).abs().max() < TOLERANCE
        theirs.save_pretrained(tmp_path / "theirs")
        again = from_pretrained(tmp_path / "theirs")
        assert torch.equal(again(ids).logits, ours(ids).logits)


def test_the_pipeline_of_transformers_fills_a_mask_as_we_do(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = character_tokenizer(TEXT)
    model = small_model(vocab_size=tokenizer.get_vocab_size())
    save_pretrained(model, tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path), tokenizer=str(tmp_path))
    text = "the qu[MASK]ck fox"
    (ours,) = fill_mask.fill_mask(*fill_mask.load_model(tmp_path), text, top_k=3)
    # Our answers leave out the special tokens, which have the first five ids.
    answers = [answer for answer in theirs(text, top_k=8) if answer["token"] >= 5]
    for guess, answer in zip(ours, answers[:3], strict=True):
        assert guess.token == tokenizer.id_to_token(answer["token"])
        assert guess.probability == pytest.approx(answer["score"], abs=TOLERANCE)


def test_a_byte_level_token_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published ModernBERT has such a vocabulary. Its mask token includes the spaces before it."""
    transformers = pytest.importorskip("transformers", reason="transformers is what this is compared with")
    tokenizer = byte_level_tokenizer()
    model = small_model(vocab_size=tokenizer.get_vocab_size())
    save_pretrained(model, tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    theirs = transformers.pipeline("fill-mask", model=str(tmp_path), tokenizer=str(tmp_path))
    size, text = tokenizer.get_vocab_size(), "the old [MASK] saw"
    (ours,) = fill_mask.fill_mask(*fill_mask.load_model(tmp_path), text, top_k=size - 5)
    answers = [answer for answer in theirs(text, top_k=size) if answer["token"] >= 5]
    assert [guess.token for guess in ours] == [answer["token_str"] for answer in answers]
    assert [guess.sequence for guess in ours] == [answer["sequence"] for answer in answers]
    assert {" the", "s", "\ufffd"} <= {guess.token for guess in ours}
    fill_mask.main(["--run", str(tmp_path), "--top-k", "3", "[MASK] cats saw [MASK]."])
    first, second = fill_mask.fill_mask(*fill_mask.load_model(tmp_path), "[MASK] cats saw [MASK].")
    sentence = f"{first[0].token} cats saw{second[0].token}."
    assert f"all filled in: {printable(sentence)}" in capsys.readouterr().out


def damaged(folder: Path, **changes: object) -> Path:
    """A model folder with other values in its config."""
    save_pretrained(small_model(), folder)
    (folder / SUMS).unlink()
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, "model_type = 'bert'"),
        ({"norm_bias": True}, "norm_bias = True"),
        ({"classifier_bias": True}, "classifier_bias = True"),
        ({"classifier_activation": "relu"}, "classifier_activation = 'relu'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling is not supported"),
        ({"hidden_size": 20}, "has other sizes"),
        ({"num_hidden_layers": 4}, "has other sizes"),
        ({"hidden_size": 6}, "RoPE turns pairs"),
        ({"num_attention_heads": 3}, "not divisible"),
        ({"vocab_size": "many"}, "must be an integer"),
        ({"global_rope_theta": -1.0}, "global_rope_theta"),
        ({"global_rope_theta": 10**30}, "it must be above 0 and at most 9.22e"),
        ({"initializer_range": 5e-324}, "initializer_range is 5e-324; it must be at least 1e-30"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "does not describe"),
        ({"rope_parameters": 5}, "does not describe"),
        ({"rope_parameters": {}}, "rope_parameters has no rope_theta for full_attention"),
        ({"layer_types": []}, "layer_types has 0 entries, but num_hidden_layers is 3"),
        ({"norm_eps": True}, "norm_eps is True; it must be a number"),
        ({"layer_types": ["sliding_attention"] * 3}, "global layer first and then at a fixed"),
        ({"sliding_window": 4}, "sliding_window 4, which is not half of local_attention"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        from_pretrained(damaged(tmp_path / "model", **changes))


def test_without_a_base_of_their_own_local_layers_use_the_global_one(tmp_path: Path) -> None:
    """Version 4 of `transformers` reads null in this way. Version 5 writes `rope_parameters` instead."""
    folder = damaged(tmp_path / "model", global_rope_theta=777.0, local_rope_theta=None)
    assert read_config(folder).local_rope_theta == 777.0
    kinds = {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 3.0}}
    folder = damaged(tmp_path / "recent", local_rope_theta=None, rope_parameters=kinds)
    assert read_config(folder).local_rope_theta == 3.0


def test_scaled_positions_are_refused(tmp_path: Path) -> None:
    kinds = ("full_attention", "sliding_attention")
    rope = {kind: {"rope_type": "yarn", "rope_theta": 1.0} for kind in kinds}
    with pytest.raises(ValueError, match="rope_type is 'yarn'"):
        read_config(damaged(tmp_path / "model", rope_parameters=rope))


def test_an_encoder_without_a_head_is_refused(tmp_path: Path) -> None:
    """The names in the file of a bare encoder have no prefix."""
    save_pretrained(small_model(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    encoder = {
        key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")
    }
    save_file(encoder, tmp_path / "model.safetensors")
    (tmp_path / SUMS).unlink()
    with pytest.raises(ValueError, match="which ModernBertForMaskedLM needs; it belongs to another kind"):
        from_pretrained(tmp_path)


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = small_model()
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    model.decoder.weight = nn.Parameter(model.decoder.weight.clone())
    with pytest.raises(ValueError, match="the decoder's weight isn't the embedding; tie them before"):
        save_pretrained(model, tmp_path / "folder")
    model = small_model()
    prune.l1_unstructured(model.model.layers[0].attn.Wo, "weight", 0.5)
    with pytest.raises(
        ValueError,
        match="is in a wrapped layer; unwrap the layer before you save the model",
    ):
        save_pretrained(model, tmp_path / "folder")
    model = small_model()
    parametrizations.weight_norm(model.model.layers[0].attn.Wo)
    with pytest.raises(ValueError, match="has LoRA or another parametrization; call merge_lora"):
        save_pretrained(model, tmp_path / "folder")
    model = small_model()
    model.model.layers[0].attn.Wo = nn.Sequential(model.model.layers[0].attn.Wo)
    with pytest.raises(ValueError, match=r"has no model\.layers\.0\.attn\.Wo\.weight; unwrap that layer"):
        save_pretrained(model, tmp_path / "folder")
    model = small_model()
    model.model.layers = model.model.layers[:1]
    with pytest.raises(ValueError, match=r"has no model\.layers\.1\..*, or correct the configuration"):
        save_pretrained(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_an_untied_or_infinite_weight_is_refused(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"decoder.weight": torch.zeros(40, 16)}, path)
    with pytest.raises(ValueError, match="untied"):
        from_pretrained(tmp_path)
    save_file(tensors | {"decoder.bias": torch.full((40,), torch.inf)}, path)
    with pytest.raises(ValueError, match="finite"):
        from_pretrained(tmp_path)

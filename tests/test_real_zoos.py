"""The zoos of the papers in their own formats: files read, functions right, studies run from the YAML that ships."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

import spiritlevel as sl
from real_zoo_files import (
    BUNDLE,
    PAIRS,
    WNIDS,
    WORDS,
    soup_logits,
    soup_weights,
    write_imagenets,
    write_images,
    write_mnli,
    write_soups,
)
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, CheckpointError, ConfigError, DataError, MissingDependencyError
from spiritlevel.experiments.zoos import (
    clip_classifier,
    clip_crop,
    convert_bert,
    convert_berts,
    entailment,
    imagenet,
    read_bundle,
)
from spiritlevel.experiments.zoos.images import MEAN, SPREAD, image_folder
from spiritlevel.study import StudyConfig, load_checkpoint, load_data, load_function, run_study
from spiritlevel.study.session import MEASURED, Session
from spiritlevel.study.settings_file import read_config
from zoos import settings, write_zoo

STUDIES = Path(__file__).parent.parent / "studies"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path / "data"))
    imagenet._places.cache_clear()
    return tmp_path / "data"


# ------------------------------------------------------------------------------------------------------- CLIP soups


def test_a_soup_computes_what_the_original_layout_does() -> None:
    """Kills: heads of another width, the usual GELU, no norm of features, norms or class token at another place."""
    weights = soup_weights(0)
    model = clip_classifier(weights)
    images = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    expected = soup_logits(weights, images)
    with torch.no_grad():
        assert (model.double()(images.double()) - expected).abs().max() < 1e-11 * expected.abs().max()
        assert (clip_classifier(weights)(images) - expected).abs().max() < 1e-4 * expected.abs().max()


def test_a_soup_computes_what_transformers_clip_does() -> None:
    """An implementation by other people, with other names for everything."""
    weights = soup_weights(3)
    config = tf.CLIPVisionConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=2, patch_size=32,
        projection_dim=24, hidden_act="quick_gelu", attn_implementation="sdpa",
    )  # fmt: skip
    other = tf.CLIPVisionModelWithProjection(config).eval().double()
    other.load_state_dict(renamed(weights), strict=False)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        features = other(images).image_embeds
        head = {n: weights[f"classification_head.{n}"].double() for n in ("weight", "bias")}
        expected = torch.nn.functional.normalize(features, dim=-1) @ head["weight"].T + head["bias"]
        assert (clip_classifier(weights).double()(images) - expected).abs().max() < 1e-11 * expected.abs().max()


def renamed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The image encoder by transformers' names."""
    names = {
        "class_embedding": "embeddings.class_embedding", "conv1.weight": "embeddings.patch_embedding.weight",
        "positional_embedding": "embeddings.position_embedding.weight",
    }  # fmt: skip
    parts = (("transformer.resblocks", "encoder.layers"), ("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm"),
             ("ln_", "layer_norm"), ("mlp.c_fc", "mlp.fc1"), ("mlp.c_proj", "mlp.fc2"),
             ("attn.", "self_attn."))  # fmt: skip
    out = {"visual_projection.weight": weights["model.visual.proj"].T}
    for name, w in weights.items():
        short = name.removeprefix("model.visual.")
        if short == name or short == "proj":
            continue
        short = names.get(short, short)
        for a, b in parts:
            short = short.replace(a, b)
        if "in_proj" in short:
            for letter, third in zip("qkv", w.chunk(3), strict=True):
                out["vision_model." + short.replace("in_proj_", f"{letter}_proj.")] = third
        else:
            out["vision_model." + short] = w
    return {n: w.double() for n, w in out.items()}


def test_the_sizes_of_a_soup_are_read_off_its_tensors() -> None:
    """Kills: a fixed ViT-B/32."""
    model = clip_classifier(soup_weights(0, layers=3, classes=7))
    visual = model.model.visual
    assert len(visual.transformer.resblocks) == 3
    assert visual.transformer.resblocks[0].attn.num_heads == 2
    assert model.classification_head.out_features == 7
    assert not any("token_embedding" in n for n, _ in model.named_parameters())


def test_geodesic_sharpness_sees_every_head_of_a_soup() -> None:
    """Kills: attention in a form the library does not know, heads of another width."""
    model = clip_classifier(soup_weights(0, layers=1)).double()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch, few = (images, torch.tensor([0, 1])), sl.solvers.SphereAscent(steps=3)
    blocks = sl.find_symmetries(model)
    assert len([b for b in blocks if "queries, keys" in b.name or "values, output" in b.name]) == 2
    moved = copy.deepcopy(model)
    moved.load_state_dict(sl.move_along_orbit(model, blocks, seed=1, condition=30.0))
    problems = [sl.Problem(m, [batch]) for m in (model, moved)]
    before, after = (sl.geodesic_sharpness(p, 0.02, solver=few).value for p in problems)
    assert before == pytest.approx(after, rel=1e-6)
    plain, driven = (sl.adaptive_sharpness(p, 0.2, solver=few).value for p in problems)
    assert driven > 1.1 * plain


def test_half_precision_and_strange_files(tmp_path: Path) -> None:
    half = {n: w.half() for n, w in soup_weights(0).items()}
    assert {p.dtype for p in clip_classifier(half).parameters()} == {torch.float32}
    with pytest.raises(CheckpointError, match=r"there is no 'model\.visual\.conv1\.weight'"):
        clip_classifier({"conv1.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="multiple of 64, got 100"):
        clip_classifier({**soup_weights(0), "model.visual.conv1.weight": torch.zeros(100, 3, 32, 32)})
    with pytest.raises(CheckpointError, match="expected the weights of a CLIP vision transformer"):
        clip_classifier({**soup_weights(0), "model.visual.stranger": torch.zeros(1)})


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("run",))


def test_a_pickle_with_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({**soup_weights(0), "x": Evil()}, tmp_path / "model_0.pt")
    with pytest.raises(CheckpointError, match="which could run code: refused"):
        load_checkpoint(tmp_path / "model_0.pt", "spiritlevel.experiments.zoos.clip_soups:clip_classifier")
    assert capsys.readouterr().out == ""


def test_a_builder_that_takes_weights_gets_them(tmp_path: Path) -> None:
    """Kills: such a builder called without; its model loaded again; one with defaults mistaken for it."""
    torch.save(soup_weights(1), tmp_path / "model_1.pt")
    model = load_checkpoint(tmp_path / "model_1.pt", "spiritlevel.experiments.zoos.clip_soups:clip_classifier")
    assert torch.equal(model.model.visual.proj, soup_weights(1)["model.visual.proj"])
    save_file({"weight": torch.ones(1, 1), "bias": torch.ones(1)}, tmp_path / "w.safetensors")
    plain = load_checkpoint(tmp_path / "w.safetensors", lambda width=1: torch.nn.Linear(width, 1))
    assert plain.weight.item() == 1
    with pytest.raises(CheckpointError, match=r"return a torch\.nn\.Module, got int"):
        load_checkpoint(tmp_path / "w.safetensors", lambda weights: 1)


# ----------------------------------------------------------------------------------------------------------- images


def test_crops_are_those_of_openai() -> None:
    """Kills: the longer side scaled, a crop from the corner, rounding up, another filter. By hand, from PIL alone."""
    g = np.random.default_rng(0)
    wide = Image.fromarray(g.integers(0, 255, (300, 421, 3), dtype=np.uint8))
    small = wide.resize((314, 224), Image.Resampling.BICUBIC)  # 224 * 421 / 300 = 314.3
    expected = np.asarray(small)[:, 45:269]  # (314 - 224) / 2 = 45
    assert (clip_crop(wide) == expected).all()
    tall = Image.fromarray(g.integers(0, 255, (421, 300), dtype=np.uint8))  # grey: three equal colours
    assert clip_crop(tall).shape == (224, 224, 3)
    assert (clip_crop(tall)[..., 0] == np.asarray(tall.resize((224, 314), Image.Resampling.BICUBIC))[45:269]).all()
    assert (clip_crop(small.crop((0, 0, 224, 224))) == np.asarray(small)[:, :224]).all()


def test_images_come_as_clip_takes_them(tmp_path: Path) -> None:
    """Kills: colours from 0 to 255, mean and spread swapped, rows and colours exchanged, labels by order of files."""
    write_images(tmp_path, WNIDS[:3], 2, seed=0)
    found = image_folder(tmp_path, ("other", *WNIDS)).batched(4)
    images, labels = found[0]
    assert [len(b[1]) for b in found] == [4, 2]
    assert labels.tolist() == [1, 1, 2, 2]
    with Image.open(tmp_path / WNIDS[1] / f"{WNIDS[1]}_0.JPEG") as image:
        crop = torch.tensor(np.array(clip_crop(image))).double() / 255
    for c in range(3):
        assert torch.allclose(images[2, c].double(), (crop[..., c] - MEAN[c]) / SPREAD[c], atol=1e-5)


def test_images_are_decoded_once_and_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a cache that is never used, and one that outlives its files."""
    write_images(tmp_path, WNIDS[:2], 2, seed=0)
    first = image_folder(tmp_path, WNIDS)
    monkeypatch.setattr("spiritlevel.experiments.zoos.images.clip_crop", lambda *_: 1 / 0)
    assert image_folder(tmp_path, WNIDS).fingerprint == first.fingerprint
    monkeypatch.undo()
    write_images(tmp_path, WNIDS[:2], 2, seed=7)
    assert image_folder(tmp_path, WNIDS).fingerprint != first.fingerprint
    assert not list((tmp_path / ".crops").glob("*.part"))


def test_a_choice_of_images_is_fixed_and_spread_over_classes(tmp_path: Path) -> None:
    """Kills: the first so many, which would be of the first classes only."""
    write_images(tmp_path, WNIDS, 3, seed=0)
    found = image_folder(tmp_path, WNIDS)
    some, again = found.chosen(6, seed=0), found.chosen(6, seed=0)
    assert some.rows == again.rows
    assert len(some.rows) == 6
    assert some.rows[-1] > 6
    assert found.chosen(6).rows == tuple(range(6))
    assert some.fingerprint != found.chosen(6, seed=1).fingerprint != found.batched(3).fingerprint
    assert len(image_folder(tmp_path, WNIDS, most=5).rows) == 5


def test_what_is_wrong_with_a_folder_of_images(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"expected imagenet/train of the data folder, got nothing"):
        imagenet.train()
    write_imagenets(data, each=1)
    with pytest.raises(DataError, match="expected folders of known classes"):
        image_folder(data / "imagenet/train", WNIDS[:2])
    (tmp_path / "empty" / WNIDS[0]).mkdir(parents=True)
    with pytest.raises(DataError, match="expected images in"):
        image_folder(tmp_path / "empty", WNIDS)
    (tmp_path / "empty" / WNIDS[0] / "x.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"x\.jpg cannot be read"):
        image_folder(tmp_path / "empty", WNIDS)
    monkeypatch.setenv("SPIRITLEVEL_EXAMPLES", "few")
    with pytest.raises(ArgumentError, match="expected SPIRITLEVEL_EXAMPLES to be a whole number"):
        imagenet.val()
    monkeypatch.setenv("SPIRITLEVEL_EXAMPLES", "2")
    assert len(imagenet.val().rows) == 2
    shutil.rmtree(data / "imagenet" / "train")
    (data / "imagenet" / "train" / "cats").mkdir(parents=True)
    with pytest.raises(DataError, match="named by WordNet identifiers"):
        imagenet.train()


def test_what_is_missing_on_the_machine(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, WNIDS[:1], 1, seed=0)
    with monkeypatch.context() as m:
        m.setattr("spiritlevel.experiments.zoos.images._write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(DataError, match=r"expected to keep decoded images in .*\.crops, but: disk full"):
            image_folder(tmp_path, WNIDS)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'spiritlevel\[zoos\]'"):
        image_folder(tmp_path, WNIDS)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match="expected the package 'tokenizers'"):
        entailment.tokenised([("x", "y", "z")], ["z"], tmp_path / "nothing.txt")


def test_a_part_of_the_classes_is_judged_among_themselves(data: Path) -> None:
    """Kills: labels of the 200 taken for labels of the 1000, scores in the order of folders and not of identifiers."""
    write_imagenets(data, each=1)
    scores = torch.arange(6.0).repeat(2, 1)
    assert imagenet.renditions_scores(scores).tolist() == [[1.0, 2.0, 4.0]] * 2
    assert imagenet.adversarial_scores(scores).tolist() == [[0.0, 5.0]] * 2
    assert [int(y) for b in imagenet.renditions() for y in b[1]] == [0, 1, 2]
    with pytest.raises(ArgumentError, match="expected scores of at least 6 classes, got 4"):
        imagenet.adversarial_scores(scores[:, :4])
    write_images(data / "imagenet-a", ("n99999999",), 1, 0)
    imagenet._places.cache_clear()
    with pytest.raises(DataError, match="in imagenet-a, got n99999999"):
        imagenet.adversarial_scores(scores)


# ------------------------------------------------------------------------------------------------------------- BERT


def test_a_tensorflow_checkpoint_is_read_without_tensorflow() -> None:
    """A file that TensorFlow wrote, in two parts, against the values it wrote. Kills: a wrong part or offset."""
    wrote = np.load(BUNDLE.parent / "bert_00.npz")
    read = read_bundle(BUNDLE / "model.ckpt-36815")
    assert len(read) == 50
    assert {n for n in read if "adam_" not in n} == {n.replace("|", "/") for n in wrote.files}
    for name in wrote.files:
        tensor = read[name.replace("|", "/")]
        assert tensor.shape == wrote[name].shape
        assert (tensor.numpy() == wrote[name]).all()
    assert int(read["global_step"]) == 36815
    assert list(read_bundle(BUNDLE / "model.ckpt-36815", lambda n: n == "output_bias")) == ["output_bias"]


@pytest.mark.parametrize("damage", ["missing", "cut data", "cut index", "other file", "kind", "compressed"])
def test_damaged_checkpoints_are_errors(tmp_path: Path, damage: str) -> None:
    shutil.copytree(BUNDLE, tmp_path / "b")
    index, part = tmp_path / "b" / "model.ckpt-36815.index", tmp_path / "b" / "model.ckpt-36815.data-00000-of-00002"
    if damage == "missing":
        part.unlink()
    elif damage == "cut data":
        part.write_bytes(part.read_bytes()[:-8])
    elif damage == "cut index":
        index.write_bytes(index.read_bytes()[:-8])
    elif damage == "other file":
        index.write_bytes(b"\0" * 100)
    elif damage == "compressed":
        content = bytearray(index.read_bytes())
        content[-53] = 1  # the kind of the last block: behind it four bytes of its checksum, and the footer of 48
        index.write_bytes(content)
    else:
        index.write_bytes(index.read_bytes().replace(b"\x08\x09\x12", b"\x08\x07\x12"))  # int64 made strings
    with pytest.raises(CheckpointError, match=r"expected (a TensorFlow checkpoint|whole float or integer)"):
        read_bundle(tmp_path / "b" / "model.ckpt-36815")


def bert_logits(v: dict[str, np.ndarray], ids: list[int], kinds: list[int], heads: int) -> np.ndarray:
    """Google's BERT written out from TensorFlow's variables, for one pair without padding."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * v[name + "/gamma"] + v[name + "/beta"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ v[name + "/kernel"] + v[name + "/bias"]

    e = "bert/embeddings/"
    x = v[e + "word_embeddings"][ids] + v[e + "token_type_embeddings"][kinds] + v[e + "position_embeddings"][: len(ids)]
    x = norm(x, e + "LayerNorm")
    for i in range(2):
        b = f"bert/encoder/layer_{i}/"
        q, k, u = (dense(x, f"{b}attention/self/{n}").reshape(len(ids), heads, -1) for n in ("query", "key", "value"))
        s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        s = np.exp(s - s.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), u).reshape(len(ids), -1)
        x = norm(x + dense(mixed, b + "attention/output/dense"), b + "attention/output/LayerNorm")
        h = dense(x, b + "intermediate/dense")
        h = h * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = norm(x + dense(h, b + "output/dense"), b + "output/LayerNorm")
    return np.tanh(dense(x[0], "bert/pooler/dense")) @ v["output_weights"].T + v["output_bias"]


def test_a_converted_bert_computes_what_its_variables_say(tmp_path: Path) -> None:
    """Kills: kernels not turned, gains for shifts, the classifier turned, GELU by erf, heads ignored."""
    saved = np.load(BUNDLE.parent / "bert_00.npz")
    variables = {n.replace("|", "/"): saved[n].astype(np.float64) for n in saved.files}
    model = load_checkpoint(convert_bert(BUNDLE, tmp_path / "bert_00", heads=2)).double()
    ids, kinds = [3, 6, 8, 13, 6, 9, 30, 4, 6, 9, 30, 4], [0] * 8 + [1] * 4
    expected = bert_logits(variables, ids, kinds, heads=2)
    padded = {"input_ids": [*ids, 0, 0], "token_type_ids": [*kinds, 0, 0], "attention_mask": [1] * 12 + [0, 0]}
    with torch.no_grad():
        found = model(**{n: torch.tensor([v]) for n, v in padded.items()}).logits[0].numpy()
    assert np.abs(found - expected).max() < 1e-12
    assert len(sl.find_symmetries(model)) >= 4


def test_many_are_converted_and_those_that_are_there_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected folders with model\.ckpt"):
        convert_berts(tmp_path, tmp_path)
    with pytest.raises(CheckpointError, match=r"expected model\.ckpt-\*\.index"):
        convert_bert(tmp_path, tmp_path)
    for i in range(2):
        shutil.copytree(BUNDLE, tmp_path / "tf" / f"bert_0{i}")
    early = tmp_path / "tf" / "bert_00" / "model.ckpt-100.index"
    early.write_bytes(b"an older one")
    assert [p.name for p in convert_berts(tmp_path / "tf", tmp_path / "hf")] == ["bert_00", "bert_01"]
    config = json.loads((tmp_path / "hf/bert_00/config.json").read_text())
    assert config["label2id"] == {"contradiction": 0, "entailment": 1, "neutral": 2}
    assert (config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]) == (2, 16, 24)
    (tmp_path / "hf/bert_01/config.json").unlink()
    (tmp_path / "hf/bert_00/model.safetensors").write_bytes(b"kept")
    convert_berts(tmp_path / "tf", tmp_path / "hf")
    assert (tmp_path / "hf/bert_00/model.safetensors").read_bytes() == b"kept"
    assert len(load_file(tmp_path / "hf/bert_01/model.safetensors")) == 41
    shutil.rmtree(tmp_path / "tf")
    (tmp_path / "tf").mkdir()
    torch_like = tmp_path / "tf" / "bert_02"
    shutil.copytree(BUNDLE, torch_like)
    index = torch_like / "model.ckpt-36815.index"
    index.write_bytes(index.read_bytes().replace(b"output_weights", b"output_strange"))
    with pytest.raises(CheckpointError, match="expected a fine-tuned BERT with a classifier"):
        convert_berts(tmp_path / "tf", tmp_path / "hf")


def test_pairs_become_word_pieces_as_in_transformers(data: Path) -> None:
    """Kills: quotes that swallow columns, unlabelled pairs kept, kinds of pieces mixed up, labels in other order."""
    write_mnli(data)
    found = entailment.val()
    kept = [p for p in PAIRS if p[2] != "-"]
    tokenizer = tf.BertTokenizer(vocab={w: i for i, w in enumerate(WORDS)}, do_lower_case=True)
    theirs = tokenizer([p[0] for p in kept], [p[1] for p in kept], padding=True, return_tensors="pt")
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(found[name], theirs[name]), name
    order = {"contradiction": 0, "entailment": 1, "neutral": 2}
    assert found["labels"].tolist() == [order[p[2]] for p in kept]
    assert entailment.hans()["labels"].tolist() == [0 if p[2] == "entailment" else 1 for p in PAIRS]
    assert int((found["input_ids"] == WORDS.index("[UNK]")).sum()) > 0


def test_long_pairs_lose_their_ends_from_the_longer_side(data: Path) -> None:
    write_mnli(data)
    long = [("the " * 200, "a " * 70, "neutral"), ("the", "a " * 200, "neutral")]
    found = entailment.tokenised(long, ["neutral"], data / "bert/vocab.txt")
    assert found["input_ids"].shape == (2, 128)
    the, a = WORDS.index("the"), WORDS.index("a")
    assert [int((found["input_ids"][0] == w).sum()) for w in (the, a)] == [63, 62]
    assert [int((found["input_ids"][1] == w).sum()) for w in (the, a)] == [1, 124]


def test_what_is_wrong_with_sentences(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"expected MNLI/train\.tsv of the data folder"):
        entailment.train()
    write_mnli(data)
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\nx\ty\n")
    with pytest.raises(DataError, match="expected columns sentence1, sentence2 and gold_label"):
        entailment.pairs(tmp_path / "a.tsv", ["x"])
    (tmp_path / "b.jsonl").write_text('{"sentence1": "x", "sentence2": "y", "gold_label": "perhaps"}\n')
    with pytest.raises(DataError, match=r"labelled yes in .*, got \['perhaps'\]"):
        entailment.pairs(tmp_path / "b.jsonl", ["yes"])
    assert entailment.pairs(tmp_path / "b.jsonl", ["perhaps"]) == [("x", "y", "perhaps")]
    (tmp_path / "vocab.txt").write_text("the\n[PAD]\n")
    with pytest.raises(DataError, match="expected BERT's vocabulary"):
        entailment.tokenised([("x", "y", "z")], ["z"], tmp_path / "vocab.txt")
    monkeypatch.setenv("SPIRITLEVEL_EXAMPLES", "3")
    assert len(entailment.train()["labels"]) == 3
    shutil.rmtree(data / "MNLI")
    (data / "multinli_1.0").mkdir()
    shutil.copy(tmp_path / "b.jsonl", data / "multinli_1.0/multinli_1.0_dev_matched.jsonl")
    with pytest.raises(DataError, match="perhaps"):  # found, read, and wrong
        entailment.val()


def test_hans_reads_two_classes_as_one() -> None:
    """Kills: summed probabilities, which would call the first pair non-entailment."""
    scores = torch.tensor([[0.3, 0.4, 0.3], [0.1, 0.2, 0.3]]).log()
    assert entailment.hans_scores(scores).argmax(-1).tolist() == [0, 1]


# ---------------------------------------------------------------------------------------------------------- studies


def adapted(name: str, folder: Path, count: int) -> Path:
    """The YAML that ships, with fewer examples, in a folder that has ``zoos`` and ``data`` beside it."""
    text = (STUDIES / f"{name}.yaml").read_text()
    plain = yaml.safe_load(text)
    assert len(plain["measures"]) == 3
    for old, new in (
        ("subset: 2048", f"subset: {count}"), ("subset: 1024", f"subset: {count}"), ("size: 256", "size: 4"),
        ("size: 128", "size: 3"),
        ("rho: {rise: [0.1, 0.5], checkpoints: 3}", "rho: {rise: [0.02], checkpoints: 2}\n    steps: 3"),
    ):  # fmt: skip
        text = text.replace(old, new)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["clip_soups_imagenet", "feather_berts_mnli"])
def test_what_a_study_names_is_there(name: str) -> None:
    """Kills: a function that was renamed here and not in the YAML. Nothing is loaded."""
    config = read_config(STUDIES / f"{name}.yaml")
    named = [config.data.train, *config.data.tests.values(), *config.data.scores.values(), config.zoo.builder]
    for reference in filter(None, named):
        assert load_function(reference).__module__ == reference.partition(":")[0]
    assert set(config.data.tests) >= set(config.data.scores)


@pytest.mark.slow
def test_the_study_of_the_soups_runs_to_a_report(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From three files in the published format to a report. Errors on a part of the classes are counted by hand."""
    write_soups(tmp_path / "zoos/clip_soups", 3)
    write_imagenets(data, each=2)
    path = adapted("clip_soups_imagenet", tmp_path, 6)
    table = run_study(read_config(path))
    assert table.names == ("model_0", "model_1", "model_2")
    assert not table.failures
    assert table.hp["epochs"] == (None, 4, 5)
    images = torch.cat([x for x, _ in imagenet.renditions()])
    for i, error in enumerate(table.gen["imagenet-r_error"]):
        answers = soup_logits(soup_weights(i), images)[:, [1, 2, 4]].argmax(-1)
        assert error == pytest.approx(float((answers != torch.arange(3).repeat_interleave(2)).double().mean()))
    assert main(["report", str(tmp_path / "clip_soups_imagenet.db"), "--out", str(tmp_path / "report")]) == 0
    assert "imagenet-sketch" in (tmp_path / "report/report.html").read_text()


@pytest.mark.slow
def test_the_study_of_the_berts_runs_to_a_report(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnli(data)
    zoo = tmp_path / "zoos/feather_berts"
    for i in range(3):
        convert_bert(BUNDLE, zoo / f"bert_0{i}", heads=2)
        weights = load_file(zoo / f"bert_0{i}/model.safetensors")
        g = torch.Generator().manual_seed(i)
        moved = {n: w + 0.3 * i * w.abs().mean() * torch.randn(w.shape, generator=g) for n, w in weights.items()}
        save_file(moved, zoo / f"bert_0{i}/model.safetensors", metadata={"format": "pt"})
    path = adapted("feather_berts_mnli", tmp_path, 5)
    table = run_study(read_config(path))
    assert not table.failures
    batch = {n: t for n, t in entailment.hans().items() if n != "labels"}
    for i, error in enumerate(table.gen["hans_error"]):
        with torch.no_grad():
            says = load_checkpoint(zoo / f"bert_0{i}")(**batch).logits.argmax(-1) == 1
        right = torch.tensor([p[2] == "entailment" for p in PAIRS])
        assert error == pytest.approx(float((says != right).double().mean()))
    assert main(["report", str(tmp_path / "feather_berts_mnli.db"), "--out", str(tmp_path / "report")]) == 0
    assert "hans" in (tmp_path / "report/report.html").read_text()


def swapped(scores: torch.Tensor) -> torch.Tensor:
    return scores.flip(-1)


@pytest.mark.parametrize("count", [2, 9])  # one by one, and as many as are evaluated together
def test_a_test_set_may_have_other_classes(tmp_path: Path, count: int) -> None:
    """Kills: scores that are never turned, or on every set; sets that are evaluated together without them."""
    write_zoo(tmp_path, count)
    plain = settings(tmp_path, measures=["gradient-norm"])
    before = run_study(StudyConfig.model_validate(plain))
    plain["data"] = {**plain["data"], "scores": {"shifted": swapped}}
    after = run_study(StudyConfig.model_validate(plain))
    assert np.allclose(before.gen["shifted_error"] + after.gen["shifted_error"], 1)
    assert (before.gen["iid_error"] == after.gen["iid_error"]).all()
    with pytest.raises(ConfigError, match=r"expected scores for test sets out of iid, shifted; got 'other'"):
        run_study({**plain, "data": {**plain["data"], "scores": {"other": swapped}}})


def test_images_go_into_a_study_as_other_data_do(tmp_path: Path) -> None:
    """Kills: the study's batch size or subset passed over, the same fingerprint for other cuts."""
    write_images(tmp_path, WNIDS, 2, seed=0)
    found = load_data(lambda: image_folder(tmp_path, WNIDS), batch_size=5)
    assert [len(y) for _, y in found] == [5, 5, 2]
    assert [len(y) for _, y in load_data(lambda: image_folder(tmp_path, WNIDS), 5, examples=6)] == [5, 1]
    plain = {
        "zoo": {"checkpoints": {"a": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(150528, 6))}},
        "data": {"train": lambda: image_folder(tmp_path, WNIDS), "subset": 7},
        "measures": ["gradient-norm"],
        "batches": {"size": 4},
    }
    session = Session(StudyConfig.model_validate(plain))
    assert [len(y) for _, y in session.sets[MEASURED]] == [4, 3]
    assert int(torch.cat([y for _, y in session.sets[MEASURED]]).max()) > 3
    assert len(set(session.fingerprints.values())) == 2

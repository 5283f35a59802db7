"""Data files and checkpoints: the real formats, and one clear error for each broken one."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from torch import nn

from spiritlevel.errors import ArgumentError, CheckpointError, DataError, SpiritlevelError
from spiritlevel.study import load_checkpoint, load_data, load_function
from spiritlevel.study.data import ArrayBatches

X = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1])


def write(path: Path, names: tuple[str, str] = ("x", "y")) -> Path:
    x, y = names
    if path.suffix == ".npz":
        np.savez(path, **{x: X.numpy(), y: Y.numpy()})
    elif path.suffix == ".safetensors":
        save_file({x: X, y: Y}, path)
    else:
        pq.write_table(pa.table({x: X.tolist(), y: Y.tolist()}), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_the_three_formats_hold_the_same_batches(tmp_path: Path, suffix: str) -> None:
    """Kills: a lost axis in nested parquet columns, a dropped last batch, labels among the inputs."""
    batches = list(load_data(write(tmp_path / f"data{suffix}"), batch_size=2))
    assert [len(y) for _, y in batches] == [2, 2, 1]
    torch.testing.assert_close(torch.cat([x for x, _ in batches]).float(), X)
    assert torch.equal(torch.cat([y for _, y in batches]), Y)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_named_inputs_become_keywords(tmp_path: Path, suffix: str) -> None:
    (batch,) = load_data(write(tmp_path / f"data{suffix}", ("pixel_values", "label")), examples=3)
    assert sorted(batch) == ["labels", "pixel_values"]
    assert batch["pixel_values"].shape == (3, 1, 4, 4)


def arrays() -> dict[str, Any]:
    return {"x": X.numpy(), "y": Y.numpy()}


def pair() -> tuple[Any, Any]:
    return X, Y


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=2)


def nothing() -> None:
    return None


@pytest.mark.parametrize("name", ["arrays", "pair", "loader"])
def test_functions_give_arrays_pairs_or_batches(name: str) -> None:
    batches = list(load_data(f"{__name__}:{name}", batch_size=2))
    assert [len(b[1]) for b in batches] == [2, 2, 1]


def test_batches_can_be_indexed_like_a_list() -> None:
    batches = ArrayBatches({"x": X, "y": Y}, 2)
    assert torch.equal(batches[-1][1], Y[4:])
    assert len(batches[0:2]) == 2
    with pytest.raises(IndexError):
        batches[3]


def broken(path: Path, kind: str) -> str:
    if kind == "cut":
        whole = write(path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "pickle":
        np.savez(path, x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    elif kind == "text":
        np.savez(path, x=np.array(["a", "b"]), y=np.zeros(2))
    elif kind == "uneven":
        np.savez(path, x=np.zeros((3, 2)), y=np.zeros(2))
    elif kind == "scalar":
        np.savez(path, x=np.zeros((3, 2)), y=np.zeros(()))
    elif kind == "no labels":
        np.savez(path, x=np.zeros((3, 2)))
    elif kind == "two labels":
        np.savez(path, x=np.zeros((3, 2)), y=np.zeros(3), labels=np.zeros(3))
    elif kind == "bytes":
        np.savez(path, x=np.zeros((3, 2, 2), dtype=np.uint8), y=np.zeros(3))
    elif kind == "ragged":
        pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}), path)
    elif kind == "gaps":
        pq.write_table(pa.table({"x": [1.0, None], "y": [0, 1]}), path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("d.npz", "missing", "got nothing at"),
        ("d.csv", "missing", "expected data in .npz"),
        ("d.npz", "cut", "cannot be read"),
        ("d.safetensors", "cut", "cannot be read"),
        ("d.parquet", "cut", "cannot be read"),
        ("d.npz", "pickle", "plain arrays"),
        ("d.npz", "text", "expected numbers under 'x'"),
        ("d.npz", "uneven", "equal length"),
        ("d.npz", "scalar", "one row per example"),
        ("d.npz", "no labels", "one array of targets"),
        ("d.npz", "two labels", "one array of targets"),
        ("d.npz", "bytes", "got bytes under 'x'"),
        ("d.parquet", "ragged", "equal length"),
        ("d.parquet", "gaps", "numbers without gaps"),
    ],
)
def test_broken_data_gets_one_clear_error(tmp_path: Path, name: str, kind: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(load_data(broken(tmp_path / name, kind)))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere.at.all:f", "importable module"),
        (f"{__name__}:none_such", "expected a function"),
        ("a:b:c", "expected package"),
        ("x.npz", "expected package"),
    ],
)
def test_references_that_lead_nowhere(reference: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        load_function(reference)


def test_a_function_must_give_data() -> None:
    with pytest.raises(DataError, match="arrays or batches"):
        load_data(f"{__name__}:nothing")
    with pytest.raises(ArgumentError, match="batch size"):
        load_data(f"{__name__}:arrays", batch_size=0)
    with pytest.raises(ArgumentError, match="at least one example"):
        load_data(f"{__name__}:arrays", examples=0)


# ---------------------------------------------------------------------------------------------------- checkpoints


def tiny_vit() -> nn.Module:
    torch.manual_seed(0)
    config = tf.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=4,
        patch_size=2,
        num_channels=1,
        num_labels=3,
    )
    model: nn.Module = tf.ViTForImageClassification(config)
    return model


def save(folder: Path) -> Path:
    tiny_vit().save_pretrained(folder)  # type: ignore[operator]
    return folder


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("this code must never run",))


def test_a_hugging_face_folder_gives_its_model(tmp_path: Path) -> None:
    model = load_checkpoint(save(tmp_path / "vit"))
    assert not model.training
    for (n, a), (m, b) in zip(model.state_dict().items(), tiny_vit().state_dict().items(), strict=True):
        assert n == m
        assert torch.equal(a, b)


def test_half_precision_is_kept_as_stored(tmp_path: Path) -> None:
    tiny_vit().bfloat16().save_pretrained(tmp_path)  # type: ignore[operator]
    assert {p.dtype for p in load_checkpoint(tmp_path).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_file_of_weights_and_a_builder(tmp_path: Path, suffix: str) -> None:
    path, state = tmp_path / f"w{suffix}", tiny_vit().state_dict()
    if suffix == ".pt":
        torch.save({"epoch": 3, "state_dict": state}, path)
    else:
        save_file(state, path)
    model = load_checkpoint(path, builder=f"{__name__}:tiny_vit")
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def spoil(folder: Path, how: str) -> Path:
    weights, config = folder / "model.safetensors", folder / "config.json"
    content = json.loads(config.read_text())
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "flipped":
        raw = bytearray(weights.read_bytes())
        raw[3] ^= 0xFF
        weights.write_bytes(bytes(raw))
    elif how == "no weights":
        weights.unlink()
    elif how == "bad json":
        config.write_text("{")
    elif how == "json list":
        config.write_text("[]")
    elif how == "no class":
        config.write_text(json.dumps({k: v for k, v in content.items() if k != "architectures"}))
    elif how == "unknown class":
        config.write_text(json.dumps({**content, "architectures": ["NoSuchModel"]}))
    elif how == "missing key":
        state = {k: v for k, v in tiny_vit().state_dict().items() if not k.startswith("classifier")}
        save_file(state, weights, metadata={"format": "pt"})
    elif how == "wrong shape":
        config.write_text(json.dumps({**content, "hidden_size": 16}))
    elif how == "evil pickle":
        weights.unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Evil()}))
    return folder


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "loading failed|cannot be read"),
        ("flipped", "loading failed|cannot be read"),
        ("no weights", r"expected \*\.safetensors"),
        ("bad json", r"readable config\.json"),
        ("json list", "expected an object"),
        ("no class", "'architectures'"),
        ("unknown class", "NoSuchModel"),
        ("missing key", "missing .*classifier"),
        ("wrong shape", "loading failed|mismatch"),
        ("evil pickle", "refused|loading failed"),
    ],
)
def test_broken_folders_get_one_clear_error(
    tmp_path: Path, how: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(spoil(save(tmp_path / "vit"), how))
    assert "never run" not in "".join(capfd.readouterr())


def test_broken_files_get_one_clear_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    builder = f"{__name__}:tiny_vit"
    cases: list[tuple[bytes | None, str, str | None, str]] = [
        (None, "none.pt", builder, "got nothing at"),
        (pickle.dumps({"w": Evil()}), "evil.pt", builder, "refused"),
        (b"nonsense", "bad.pt", builder, "cannot be read|refused"),
        (b"nonsense", "bad.safetensors", builder, "cannot be read"),
        (b"", "empty.pt", builder, "cannot be read"),
        (b"", "any.pt", None, "expected a builder"),
    ]
    for content, name, build, words in cases:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            load_checkpoint(tmp_path / name, build)
    torch.save({"w": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="weights of ViTForImageClassification"):
        load_checkpoint(tmp_path / "other.pt", builder)
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="expected a state dict"):
        load_checkpoint(tmp_path / "list.pt", builder)
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"torch\.nn\.Module, got dict"):
        load_checkpoint(tmp_path / "w.safetensors", f"{__name__}:arrays")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"folder with config\.json"):
        load_checkpoint(tmp_path / "empty")
    assert "never run" not in "".join(capfd.readouterr())


def test_all_errors_are_ours() -> None:
    assert issubclass(CheckpointError, SpiritlevelError)
    assert issubclass(DataError, ValueError)

"""Adapters of peft, measured by themselves and with their base: selection, invariance, gradients, folders, studies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.cli import main
from spiritlevel.errors import ArgumentError, CheckpointError, ModelError
from spiritlevel.integrations.peft import adapter_parameters, load_adapter
from spiritlevel.problem import Objective
from spiritlevel.study import load_checkpoint
from spiritlevel.study.ensemble import Ensemble

SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20,
         "num_labels": 3, "hidden_dropout_prob": 0.1}  # fmt: skip
KINDS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}


def base() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SHAPE, initializer_range=0.3)).eval()


def config(**more: Any) -> peft.LoraConfig:
    settings = {"r": 3, "lora_alpha": 5, "target_modules": ["query", "value"], "init_lora_weights": False}
    return peft.LoraConfig(**{**settings, **more})


def adapted(model: nn.Module | None = None, **more: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return peft.get_peft_model(model or base(), config(**more)).eval()


def tokens(n: int = 6) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(1, 20, (n, 7), generator=g), "labels": torch.arange(n) % 3}


def on_orbit(model: Any, condition: float = 30.0) -> Any:
    """The same function, every product ``B A`` written as ``B C^-1, C A``. By hand: nothing of ours moves it."""
    g = torch.Generator().manual_seed(7)
    for module in model.modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            u, _, v = torch.linalg.svd(torch.randn(3, 3, generator=g, dtype=torch.float64))
            c = u @ torch.diag(torch.logspace(0, float(np.log10(condition)), 3, dtype=torch.float64)) @ v
            with torch.no_grad():
                a.copy_(c @ a.double())
                b.copy_(b.double() @ torch.linalg.inv(c))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_geodesic_sharpness_is_flat_along_the_orbit_and_adaptive_is_not(kind: str) -> None:
    """Kills: adapters that are not quotiented, a magnitude in the wrong block, a loss that the group changes."""
    batch, values = tokens(), []
    for move in (lambda m: m, on_orbit):
        model = move(adapted(**KINDS[kind]).double())
        names = adapter_parameters(model)
        problem = sl.Problem(model, [batch], parameters=names)
        assert {b.kind for b in problem.symmetries} == {"lora"}
        assert [b.group for b in problem.symmetries] == ["GL(3)", "GL(3)"]
        values.append(
            (
                problem.value(problem.weights, batch),
                sl.geodesic_sharpness(problem, 0.1).value,
                sl.gradient_norm(problem, sl.Quotient()).value,
                sl.adaptive_sharpness(problem, 0.5).value,
            )
        )
    (loss, geodesic, slope, adaptive), after = values
    assert after[0] == pytest.approx(loss, abs=1e-12)
    assert after[1] == pytest.approx(geodesic, rel=1e-6)
    assert after[2] == pytest.approx(slope, rel=1e-6)
    assert abs(after[3] / adaptive - 1) > 0.1
    assert geodesic > 1e-3


def test_with_the_base_too() -> None:
    batch, values = tokens(), []
    for move in (lambda m: m, on_orbit):
        model = move(adapted().double())
        problem = sl.Problem(model, [batch], parameters=adapter_parameters(model, base=True))
        assert {b.kind for b in problem.symmetries} == {"lora"}
        values.append(sl.geodesic_sharpness(problem, 0.1).value)
    assert values[1] == pytest.approx(values[0], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_loss_itself(kind: str) -> None:
    """By central differences. peft leaves DoRA's norm out of backward passes. Kills: that gradient."""
    model, batch = adapted(**KINDS[kind]).double(), tokens()
    problem = sl.Problem(model, [batch])
    chart = problem.chart(sl.Quotient())
    objective = Objective(problem, chart, batch)
    gradient = objective(chart.zeros())[1]
    direction = chart.gaussian(torch.Generator().manual_seed(0))
    direction /= direction.norm()
    h = 1e-5
    slope = (objective.value(direction * h) - objective.value(-direction * h)) / (2 * h)
    assert float(gradient @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-9)
    with torch.no_grad():
        plain = float(model(**batch).loss)
    assert plain == pytest.approx(problem.value(problem.weights, batch), abs=1e-12)
    for module in model.modules():  # nothing of ours stays in the model
        assert not {"forward", "_cache_get", "_cache_store"} & set(vars(module))


def test_a_kept_norm_of_other_weights_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: peft's cache of DoRA, which knows nothing of weights that are passed in."""
    model, batch = adapted(use_dora=True).double(), tokens()
    exact = sl.geodesic_sharpness(sl.Problem(model, [batch]), 0.1).value
    monkeypatch.setattr("peft.tuners.lora.dora.ENABLE_DORA_CACHING", True)
    with torch.no_grad():
        model(**batch)
    assert sl.geodesic_sharpness(sl.Problem(model, [batch]), 0.1).value == exact


# ---------------------------------------------------------------------------------------------------------- selection


def ends(names: list[str]) -> set[str]:
    return {".".join(n.split(".")[-3:]) for n in names}


def test_parameters_of_an_adapter() -> None:
    model = adapted(use_dora=True, modules_to_save=["classifier"])
    names = adapter_parameters(model)
    assert set(names) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert ends(names) == {
        "lora_A.default.weight", "lora_B.default.weight", "lora_magnitude_vector.default.weight",
        "modules_to_save.default.weight", "modules_to_save.default.bias",
    }  # fmt: skip
    both = adapter_parameters(model, base=True)
    idle = {n for n, _ in model.named_parameters() if ".original_module." in n}
    assert idle
    assert set(both) == {n for n, _ in model.named_parameters()} - idle


@pytest.mark.parametrize("bias", ["none", "lora_only", "all"])
def test_biases_that_an_adapter_trains_are_its_own(bias: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        model = adapted(bias=bias)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert set(adapter_parameters(model)) == trained
    assert any(n.endswith("bias") for n in trained) == (bias != "none")


def test_several_adapters() -> None:
    """Kills: idle adapters among the measured, an idle one measured at zero without a word."""
    model = adapted()
    model.add_adapter("second", config(r=2))
    assert {n.split(".")[-2] for n in adapter_parameters(model)} == {"default"}
    assert {n.split(".")[-2] for n in adapter_parameters(model, base=True) if "lora" in n} == {"default"}
    with pytest.raises(ArgumentError, match=r"expected an active adapter, got 'second', which takes no part"):
        adapter_parameters(model, "second")
    with pytest.raises(ArgumentError, match=r"expected adapters out of default, second; got 'third'"):
        adapter_parameters(model, ["third"])
    model.base_model.set_adapter(["default", "second"])
    both = adapter_parameters(model)
    assert {n.split(".")[-2] for n in both} == {"default", "second"}
    found = sl.find_symmetries(model.double(), parameters=both)
    assert sorted(b.group for b in found) == ["GL(2)", "GL(2)", "GL(3)", "GL(3)"]
    only = adapter_parameters(model, "second")
    assert {n.split(".")[-2] for n in only} == {"second"}
    problem = sl.Problem(model, [tokens()], parameters=only)
    assert sl.geodesic_sharpness(problem, 0.1).value > 0


def test_adapters_that_take_no_part_are_refused() -> None:
    with pytest.raises(ModelError, match="expected a model with adapters of peft in its layers"):
        adapter_parameters(base())
    model = adapted()
    model.merge_adapter()
    with pytest.raises(ModelError, match="they are merged into them"):
        adapter_parameters(model)
    model.unmerge_adapter()
    with model.disable_adapter(), pytest.raises(ModelError, match="they are switched off"):
        adapter_parameters(model)
    assert adapter_parameters(model)


# ----------------------------------------------------------------------------------------------------------- folders


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A base and three adapters on it, which name it as a neighbour; and data."""
    base().save_pretrained(tmp_path / "base")
    for i, kind in enumerate(KINDS):
        torch.manual_seed(i)
        folder = tmp_path / "adapters" / f"{kind}-{i}"
        adapted(task_type="SEQ_CLS", lora_alpha=5 + i, **KINDS[kind]).save_pretrained(folder)
        settings = json.loads((folder / "adapter_config.json").read_text())
        settings["base_model_name_or_path"] = "../../base"
        (folder / "adapter_config.json").write_text(json.dumps(settings))
    batch = tokens(8)
    np.savez(tmp_path / "data.npz", **{k: v.numpy() for k, v in batch.items()})
    return tmp_path


def test_a_folder_is_loaded_ready_to_be_measured(zoo: Path) -> None:
    folder = zoo / "adapters" / "dora-2"
    model = load_adapter(folder)
    assert not model.training
    assert set(adapter_parameters(model)) == {n for n, p in model.named_parameters() if p.requires_grad}
    torch.manual_seed(2)
    twin = adapted(task_type="SEQ_CLS", lora_alpha=7, use_dora=True)
    batch = tokens()
    torch.testing.assert_close(model(**batch).logits, twin(**batch).logits)
    moved = zoo / "moved"
    shutil.move(zoo / "base", moved)
    torch.testing.assert_close(load_adapter(folder, moved)(**batch).logits, twin(**batch).logits)
    torch.testing.assert_close(load_checkpoint(folder, base)(**batch).logits, twin(**batch).logits)


def test_what_is_missing_is_named(zoo: Path) -> None:
    folder = zoo / "adapters" / "lora-0"
    with pytest.raises(CheckpointError, match=r"in a local folder with config.json, got '.*none'.*nothing is downl"):
        load_adapter(folder, zoo / "none")
    settings = json.loads((folder / "adapter_config.json").read_text())
    for name in ("google/some-base", None):
        (folder / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": name}))
        with pytest.raises(CheckpointError, match="name the folder with --base, or give a --builder"):
            load_adapter(folder)
    with pytest.raises(CheckpointError, match="expected a function that returns the base model, got int"):
        load_adapter(folder, lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(CheckpointError, match="expected an adapter for Linear"):
        load_adapter(folder, lambda: nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="for --base, got"):
        load_checkpoint(zoo / "base", base=zoo / "base")
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected an object in"):
        load_adapter(folder)
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"expected a readable adapter_config.json"):
        load_adapter(folder)
    other = zoo / "adapters" / "rslora-1"
    (other / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"expected adapter_model.safetensors in"):
        load_adapter(other)


def test_weights_that_are_missing_are_no_random_numbers(zoo: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = zoo / "adapters" / "lora-0" / "adapter_model.safetensors"
    weights = load_file(path)
    weights.pop(next(n for n in weights if "lora_B" in n))
    save_file(weights, path)
    with pytest.raises(CheckpointError, match="expected all weights of the adapter"):
        load_adapter(path.parent)


@pytest.mark.slow
def test_a_missing_package_is_named() -> None:
    script = (
        "import sys; sys.modules['peft'] = None\n"
        "from spiritlevel.integrations.peft import load_adapter\nload_adapter('.', lambda: None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "MissingDependencyError: expected the package 'peft'" in done.stderr


def test_the_command_line_measures_an_adapter(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = str(zoo / "adapters" / "lora-0"), str(zoo / "data.npz")
    arguments = ["measure", folder, "--data", data, "--rho", "0.1", "--json"]
    assert main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)["measurements"]
    model = load_adapter(Path(folder))
    expected = sl.geodesic_sharpness(sl.Problem(model, [tokens(8)]), 0.1)
    assert found["value"] == pytest.approx(expected.value, rel=1e-6)
    assert found["settings"]["parameters"] == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert main(["symmetries", folder, "--base", str(zoo / "base"), "--json"]) == 0
    assert [b["group"] for b in json.loads(capsys.readouterr().out)["blocks"]] == ["GL(3)", "GL(3)"]
    shutil.rmtree(zoo / "base")
    assert main(arguments) == 1
    assert "expected the base model of the adapter" in capsys.readouterr().err


def test_a_study_over_adapters(zoo: Path) -> None:
    """Kills: folders of adapters that no glob finds, adapters of other scaling measured with that of the first."""
    from spiritlevel.study import run_study
    from spiritlevel.study.members import Checkpoint
    from spiritlevel.study.settings_file import read_config

    (zoo / "study.yaml").write_text(
        "zoo:\n  checkpoints: adapters/*\n  same_architecture: false\ndata:\n  train: data.npz\n"
        "measures: [{measure: geodesic, rho: [0.1]}]\n"
    )
    table = run_study(read_config(zoo / "study.yaml"), engine="serial")
    assert table.names == ("dora-2", "lora-0", "rslora-1")
    assert table.failures == ()
    for i, name in enumerate(table.names):
        problem = sl.Problem(load_adapter(zoo / "adapters" / name), [tokens(8)])
        assert table.complexity["geodesic@0.1"][i] == pytest.approx(sl.geodesic_sharpness(problem, 0.1).value, rel=1e-5)
    one = Checkpoint("lora-0", zoo / "adapters" / "lora-0")
    before = one.digest()
    (zoo / "base" / "config.json").write_text((zoo / "base" / "config.json").read_text() + "\n")
    assert one.digest() != before


def test_networks_with_other_numbers_in_their_modules_are_not_run_as_one() -> None:
    with pytest.raises(ModelError, match="other parameters or modules"):
        Ensemble([adapted(lora_alpha=5), adapted(lora_alpha=6)], [tokens()])


# ---------------------------------------------------------------------------------------------------- quantised bases


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [8, 4])
def test_adapters_on_a_quantised_base(tmp_path: Path, bits: int) -> None:
    """Real int8 and nf4 weights of bitsandbytes under an adapter: the model's own loss, and flat along the orbit."""
    torch.manual_seed(0)
    shape = {**SHAPE, "hidden_size": 64, "intermediate_size": 64}
    transformers.BertForSequenceClassification(transformers.BertConfig(**shape, initializer_range=0.1)).save_pretrained(
        tmp_path
    )
    how = {"load_in_8bit": True} if bits == 8 else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    how["llm_int8_skip_modules"] = ["classifier"]  # three rows are none of its kernels' business

    def build() -> Any:
        quantised = transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path, quantization_config=transformers.BitsAndBytesConfig(**how), device_map="cpu"
        )
        torch.manual_seed(1)
        return adapted(quantised)

    batch, values = tokens(), []
    for move in (lambda m: m, lambda m: on_orbit(m, 3.0)):
        model, twin = move(build()), move(build())
        weight = model.base_model.model.bert.encoder.layer[0].attention.self.query.base_layer.weight
        assert "bitsandbytes" in type(weight).__module__
        packed = weight.detach().clone()
        problem = sl.Problem(model, [batch], parameters=adapter_parameters(model))
        with torch.enable_grad():  # a pass without gradients repacks 4-bit weights for good
            expected = float(twin(**batch).loss.detach())
        assert problem.value(problem.weights, batch) == pytest.approx(expected, abs=2e-3)
        values.append(sl.geodesic_sharpness(problem, 0.1).value)
        assert torch.equal(packed, weight)
    # int8 kernels round the activations too: their loss is a staircase, and the search ends on another of its steps
    assert values[1] == pytest.approx(values[0], rel=5e-3 if bits == 4 else 0.1)
    assert values[0] > 0

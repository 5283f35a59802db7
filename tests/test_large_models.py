"""What large models come with: checkpoints of activations, half precision, weights that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

import spiritlevel as sl
from ranked import Layer, Small, data, network
from spiritlevel.core.bare import bare
from spiritlevel.errors import DerivativeError, ModelError

SOLVER = sl.solvers.SphereAscent(steps=2)
MEASURES: dict[str, Callable[[sl.Problem], Any]] = {
    "geodesic": lambda p: sl.geodesic_sharpness(p, 0.1, solver=SOLVER).value,
    "curve": lambda p: sl.worst_case(p, sl.Elementwise("geodesic"), 0.3, SOLVER).value,
    "trace": lambda p: sl.hessian_trace(p, sl.Quotient(), samples=2, tolerance=0).value,
    "gauss-newton": lambda p: sl.hessian_trace(p, sl.Quotient(), samples=2, tolerance=0, matrix="gauss_newton").value,
}


class Checkpointed(Small):
    """Its own checkpoints, as users write them."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint.checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


def with_checkpoints(reentrant: bool = False) -> nn.Module:
    model = network()
    model.__class__ = Checkpointed
    model.reentrant = reentrant  # type: ignore[assignment]  # of Checkpointed
    return model


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return {n: f(sl.Problem(network(), data()[:1])) for n, f in MEASURES.items()}


@pytest.mark.parametrize("name", MEASURES)
def test_checkpoints_in_the_model_are_computed_again_at_the_right_weights(name: str, plain: dict[str, Any]) -> None:
    """Kills: layers computed again at the model's own weights, as a functional call leaves them."""
    assert MEASURES[name](sl.Problem(with_checkpoints(), data()[:1])) == plain[name]


@pytest.mark.parametrize("name", ["geodesic", "trace"])
def test_checkpoints_put_in_by_the_problem_change_no_digit(name: str, plain: dict[str, Any]) -> None:
    model = network()
    before = {n: (type(m), dict(m.__dict__)) for n, m in model.named_modules()}
    assert MEASURES[name](sl.Problem(model, data()[:1], checkpointing=True)) == plain[name]
    assert {n: (type(m), dict(m.__dict__)) for n, m in model.named_modules()} == before


def test_checkpoints_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an option that does nothing. With it each layer runs twice for a gradient, and autograd keeps less."""
    calls, kept, inner = [0, 0], [0, 0], Layer.forward
    for i, on in enumerate((False, True)):

        def counted(self: Layer, x: Tensor, i: int = i) -> Tensor:
            calls[i] += 1
            return inner(self, x)

        def pack(t: Tensor, i: int = i) -> Tensor:
            kept[i] += t.numel()
            return t

        monkeypatch.setattr(Layer, "forward", counted)
        problem = sl.Problem(network(), data()[:1], checkpointing=on)
        weights = {n: w.requires_grad_() for n, w in problem.weights.items()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = problem.tensor(weights, data()[0])
        torch.autograd.grad(loss, list(weights.values()))
    assert calls == [2, 4]
    assert kept[1] < kept[0] / 4


def test_reentrant_checkpoints_are_refused_with_the_way_out() -> None:
    """Values need no gradient, and pass."""
    problem = sl.Problem(with_checkpoints(reentrant=True), data())
    assert sl.average_case(problem, sl.Euclidean(), 0.01, samples=2).value == pytest.approx(
        sl.average_case(sl.Problem(network(), data()), sl.Euclidean(), 0.01, samples=2).value
    )
    with pytest.raises(DerivativeError, match="expected activation checkpoints with use_reentrant=False, got a reentr"):
        sl.gradient_norm(problem, sl.Euclidean())


def test_torch_itself_is_put_back() -> None:
    before = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction
    with pytest.raises(ModelError):
        sl.Problem(network(), [(torch.zeros(2, 3), torch.zeros(2, 3))]).check()
    assert (checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction) == before


def test_a_model_without_layers_says_where_to_put_checkpoints() -> None:
    with pytest.raises(ModelError, match="expected layers in a ModuleList or Sequential"):
        sl.Problem(nn.Linear(2, 2), [(torch.zeros(1, 2), torch.zeros(1).long())], checkpointing=True)


@pytest.mark.parametrize("own", [False, True])
def test_transformers_with_gradient_checkpointing_enabled(own: bool) -> None:
    """A decoder, whose cache must not grow when a layer runs again; ties stay ties."""
    batch = words()
    wanted = MEASURES["geodesic"](sl.Problem(gpt(), batch))
    model = gpt().train()
    new = "activation_checkpointing_enable"  # its name from transformers 5 on
    enable = getattr(model, new, model.gradient_checkpointing_enable)
    enable() if hasattr(model, new) else enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert MEASURES["geodesic"](sl.Problem(model, batch, checkpointing=own)) == wanted
    assert model.training


def test_bfloat16_is_measured_in_float32_and_left_alone() -> None:
    """Kills: coordinates in half precision, a model that comes back in float32."""
    half = network().to(torch.bfloat16)
    wide = network().to(torch.bfloat16).float()
    problem = sl.Problem(half, data()[:1])
    assert MEASURES["geodesic"](problem) == MEASURES["geodesic"](sl.Problem(wide, data()[:1]))
    assert problem.chart(sl.Elementwise()).zeros().dtype == torch.float32
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


# ------------------------------------------------------------------------------------------------ what is wrapped


def gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
    config = transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=2, loss_type="ForCausalLM")
    return transformers.GPT2LMHeadModel(config).eval()


def words() -> list[dict[str, Tensor]]:
    ids = torch.randint(0, 40, (3, 7), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "labels": ids}]


@pytest.mark.parametrize("where", ["cpu", "disk", "several"])
def test_weights_kept_elsewhere_are_read(where: str, tmp_path: Path) -> None:
    """`device_map`: kills two copies of a tied weight, the model's own weights put back by a hook, hooks taken away."""
    accelerate = pytest.importorskip("accelerate")
    wanted = MEASURES["geodesic"](sl.Problem(gpt(), words()))
    if where == "several":
        gpt().save_pretrained(tmp_path / "model")
        places = dict.fromkeys(("transformer.wte", "transformer.wpe", "transformer.drop", "transformer.h.1"), "cpu")
        places |= {"transformer.h.0": "disk", "transformer.ln_f": "disk", "lm_head": "cpu"}
        given = {"device_map": places, "offload_folder": str(tmp_path / "offload")}
        model = type(gpt()).from_pretrained(tmp_path / "model", **given).eval()
    elif where == "disk":
        model = accelerate.disk_offload(gpt(), str(tmp_path), execution_device=torch.device("cpu"))
    else:
        model = accelerate.cpu_offload(gpt(), execution_device=torch.device("cpu"))
    away = [n for n, p in model.named_parameters() if p.is_meta]
    assert away
    loss = model(**words()[0]).loss.item()
    assert MEASURES["geodesic"](sl.Problem(model, words())) == wanted
    assert [n for n, p in model.named_parameters() if p.is_meta] == away
    assert model(**words()[0]).loss.item() == loss


def test_nothing_is_copied_where_nothing_is_wrapped() -> None:
    model = network()
    assert bare(model) is model


def test_fsdp_of_the_first_kind_is_refused() -> None:
    wrapped = type("FullyShardedDataParallel", (nn.Module,), {})()
    with pytest.raises(ModelError, match=r"expected a model sharded with .*fully_shard .FSDP2., got FullyShardedData"):
        sl.Problem(wrapped, data())


def test_inside_ddp_is_the_model(tmp_path: Path) -> None:
    """Names, symmetries and numbers are those of the model inside."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(network())
        problem = sl.Problem(model, data()[:1])
        assert sorted(problem.weights) == sorted(n for n, _ in network().named_parameters())
        found = sl.find_symmetries(model)
        assert [b.name for b in found] == [b.name for b in sl.find_symmetries(network())]
        assert sl.verify_symmetries(model, data()[0], found).holds
        assert MEASURES["geodesic"](problem) == MEASURES["geodesic"](sl.Problem(network(), data()[:1]))
    finally:
        torch.distributed.destroy_process_group()

"""Models as they come: pruned, shared, quantised, sharded, frozen, in training mode, without weights."""

import copy
import tempfile
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as tf
from torch import Tensor, nn
from torch.distributed.tensor import distribute_tensor, init_device_mesh

import spiritlevel as sl
from networks import generic, network, tokens
from spiritlevel.errors import ModelError

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20}


def bert(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return generic(tf.BertForSequenceClassification(tf.BertConfig(**{**SMALL, **changes})))


def labelled() -> dict[str, Tensor]:
    return {**tokens(), "labels": torch.tensor([0, 1, 1, 0, 1, 1])}


def test_pruned_heads() -> None:
    """One of two heads cut out of a layer: its group is that of the head that is left."""
    model = bert()
    attention = model.bert.encoder.layer[0].attention
    for linear in (attention.self.query, attention.self.key, attention.self.value):
        linear.weight = nn.Parameter(linear.weight[:4].clone())
        linear.bias = nn.Parameter(linear.bias[:4].clone())
        linear.out_features = 4
    dense = attention.output.dense
    dense.weight, dense.in_features = nn.Parameter(dense.weight[:, :4].clone()), 4
    attention.self.num_attention_heads, attention.self.all_head_size = 1, 4
    found = sl.find_symmetries(model, kinds="all", batch=labelled())
    assert [b.group for b in found if b.kind == "attention"] == ["GL(4)", "GL(4)", "GL(4)^2", "GL(4)^2"]
    assert sl.verify_symmetries(model, labelled(), found).holds


def test_layers_shared_as_in_albert() -> None:
    """One group of layers run twice: one block, and it holds through both uses."""
    torch.manual_seed(0)
    model = generic(tf.AlbertForSequenceClassification(tf.AlbertConfig(**SMALL, embedding_size=8)))
    found = sl.find_symmetries(model, kinds="all", batch=labelled())
    assert [b.group for b in found if b.kind == "attention"] == ["GL(4)^2", "GL(4)^2"]
    assert sl.verify_symmetries(model, labelled(), found).holds


class Quantised(nn.Module):
    """A layer of eight-bit weights, as quantising libraries put in place of a Linear."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().max() / 127
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter((linear.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.bias, self.scale = linear.bias, scale

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def test_quantised_layers_stay_out_with_the_reason() -> None:
    model = bert()
    attention = model.bert.encoder.layer[0].attention.self
    attention.key = Quantised(attention.key)
    found = sl.find_symmetries(model)
    assert [b.name.partition("layer.")[2][0] for b in found] == ["1", "1"]
    assert any("Quantised" in x.reason for x in found.leftovers)
    assert sl.geodesic_sharpness(sl.Problem(model, [labelled()]), 0.01).value > 0


@pytest.fixture
def one_process() -> Any:
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        yield init_device_mesh("cpu", (1,))
        dist.destroy_process_group()


def test_sharded_weights_are_found_by_the_shapes_they_have_together(one_process: Any) -> None:
    # Kills: blocks of the shapes that one rank holds, and weights left out because they are spread.
    model = bert()
    whole = sl.find_symmetries(model)
    attention = model.bert.encoder.layer[0].attention.self
    attention.query.weight = nn.Parameter(distribute_tensor(attention.query.weight.detach(), one_process))
    found = sl.find_symmetries(model)
    assert [(b.name, b.parameters, b.group) for b in found] == [(b.name, b.parameters, b.group) for b in whole]


def test_a_frozen_part_takes_out_what_it_belongs_to() -> None:
    model, batch = network("vit")
    other = copy.deepcopy(model)
    for name, p in other.named_parameters():
        p.requires_grad = "layers.0" not in name
    found = sl.find_symmetries(other, kinds="all", batch=batch)
    assert found.blocks
    assert not any("layers.0" in n for b in found for n in b.parameters)
    assert any("frozen or not measured" in reason for reason in found.refused.values())
    assert sl.geodesic_sharpness(sl.Problem(other, [batch]), 0.01, blocks=found).value > 0


def test_training_mode_makes_no_difference() -> None:
    """Dropout and batch statistics are off while symmetries are looked for, and on again afterwards."""
    model, batch = network("convolutional")
    other = copy.deepcopy(model).train()
    buffers = {n: b.clone() for n, b in other.named_buffers()}
    found, expected = (sl.find_symmetries(m, kinds="all", batch=batch) for m in (other, model))
    assert [(b.name, b.group) for b in found] == [(b.name, b.group) for b in expected]
    assert all(m.training for m in other.modules())
    assert all(torch.equal(b, buffers[n]) for n, b in other.named_buffers())


def test_a_model_without_weights_is_refused() -> None:
    with torch.device("meta"):
        model = tf.BertForSequenceClassification(tf.BertConfig(**SMALL))
    with pytest.raises(ModelError, match="meta device: load the weights first"):
        sl.find_symmetries(model)

"""Finding, verifying and using the symmetries of real attention layers."""

import copy
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.errors import ArgumentError, ModelError, SymmetryError
from spiritlevel.symmetry import ADAPTERS, check_blocks

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "initializer_range": 0.5,
}


def images(size: int = 8, channels: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(3, channels, size, size, generator=g, dtype=torch.float64), torch.tensor([0, 1, 1])


def tokens() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(1, 20, (3, 6), generator=g), "labels": torch.tensor([0, 1, 1])}


class Pooled(nn.Module):
    """torch's own encoder with a classifier on top."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


class Cross(nn.Module):
    """MultiheadAttention with separate weights and learned extra key and value."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.other = torch.randn(3, 4, options.get("kdim", 8), generator=torch.Generator().manual_seed(3)).double()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.attention(x, self.other[: len(x)], self.other[: len(x)])[0].mean(1))
        return out


def sequences() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)).double(), torch.tensor([0, 1, 1])


# name: (model, batch, blocks, removed dimensions)
MODELS: dict[str, tuple[Any, Any, int, int]] = {
    "ViT": (
        lambda: tf.ViTForImageClassification(tf.ViTConfig(**SMALL, image_size=8, patch_size=4)),
        images,
        4,
        4 * 2 * 16,
    ),
    "BERT": (lambda: tf.BertForSequenceClassification(tf.BertConfig(**SMALL, vocab_size=20)), tokens, 4, 4 * 2 * 16),
    "DistilBERT": (
        lambda: tf.DistilBertForSequenceClassification(
            tf.DistilBertConfig(dim=8, n_layers=2, n_heads=2, hidden_dim=12, vocab_size=20, initializer_range=0.5)
        ),
        tokens,
        4,
        4 * 2 * 16,
    ),
    "CLIP": (
        lambda: tf.CLIPForImageClassification(
            tf.CLIPConfig(
                text_config={**SMALL, "vocab_size": 20}, vision_config={**SMALL, "image_size": 8, "patch_size": 4}
            )
        ),
        images,
        4,
        4 * 2 * 16,
    ),
    "torch encoder": (Pooled, sequences, 4, 4 * 2 * 16),
    "torch encoder, norm first, no bias": (lambda: Pooled(norm_first=True, bias=False), sequences, 4, 4 * 2 * 16),
    "MultiheadAttention, separate": (lambda: Cross(kdim=6, vdim=6), sequences, 2, 2 * 2 * 16),
    "MultiheadAttention, bias_kv": (lambda: Cross(add_bias_kv=True), sequences, 2, 2 * 2 * 16),
}


def build(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = MODELS[name][0]().double()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.dim() == 1 and "norm" not in n.lower():
                p.normal_()  # biases start at zero, where moving them shows nothing
    return model, MODELS[name][1]()


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_found_and_hold_on_data(name: str) -> None:
    """Kills: biases left out of a factor, columns for rows, A for its inverse (each drifts by 0.1 and more)."""
    model, batch = build(name)
    blocks = sl.find_symmetries(model)
    assert (len(blocks), blocks.dimension) == MODELS[name][2:]
    drifts = sl.verify_symmetries(model, batch, blocks, seed=3)
    assert len(drifts) == len(blocks)
    assert max(drifts.values()) < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_moved_weights_compute_the_same_function_and_are_really_moved(name: str) -> None:
    """Kills: a move that does nothing; a move of one factor only."""
    model, batch = build(name)
    blocks = sl.find_symmetries(model)
    state = sl.move_along_orbit(model, blocks, seed=1, condition=1e3)
    other = copy.deepcopy(model)
    other.load_state_dict(state)
    problem, moved = sl.Problem(model, [batch]), sl.Problem(other, [batch])
    assert moved.value(moved.weights, batch) == pytest.approx(problem.value(problem.weights, batch), rel=1e-9)
    for n in {n for b in blocks for n in b.parameters}:
        assert not torch.allclose(state[n], model.state_dict()[n], rtol=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_everything_else_in_the_model_is_listed(name: str) -> None:
    model, _ = build(name)
    found = sl.find_symmetries(model)
    named = dict(model.named_parameters())
    inside = {n for b in found for n in b.parameters}
    outside = {n for x in found.leftovers for n in x.parameters}
    assert inside | outside == set(named)
    assert not inside & outside
    assert found.total == sum(p.numel() for p in named.values())
    assert all(x.reason for x in found.leftovers)


def test_the_output_bias_stays_outside_and_the_others_inside() -> None:
    model, _ = build("BERT")
    inside = {n.rpartition("layer.0.attention.")[2] for b in sl.find_symmetries(model)[:2] for n in b.parameters}
    assert inside == {f"self.{r}.{k}" for r in ("query", "key", "value") for k in ("weight", "bias")} | {
        "output.dense.weight"
    }


def unit(x: Tensor) -> Tensor:
    """A helper outside the module, where the adapters do not look."""
    return nn.functional.normalize(x, dim=-1)


class Turned(nn.Module):
    """Attention by its names, but scores are cosines: the group of queries and keys is not GL(h)."""

    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(-2, -3) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = unit(q), unit(k)
        out: Tensor = self.o_proj(((q @ k.mT * 5).softmax(-1) @ v).transpose(-2, -3).flatten(-2)).mean(1)
        return out


def test_a_claim_that_does_not_hold_is_an_error_that_names_the_block() -> None:
    """Kills: a check that only warns; a check of the wrong block."""
    model, batch = Turned().double(), sequences()
    blocks = sl.find_symmetries(model)
    drifts = sl.verify_symmetries(model, batch, blocks)
    assert drifts["queries, keys"] > 0.01
    assert drifts["values, output"] < 1e-12
    with pytest.raises(SymmetryError, match="'queries, keys'"):
        sl.geodesic_sharpness(sl.Problem(model, [batch]), 0.1)
    kept = [b for b in blocks if b.name == "values, output"]
    assert check_blocks(model, batch, kept).drift < 1e-12
    assert sl.geodesic_sharpness(sl.Problem(model, [batch]), 0.1, blocks=kept).value > 0


class Own(nn.Module):
    """The same names, with one thing changed by each test."""

    num_heads = 2

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return x


def change(**parts: Any) -> nn.Module:
    model = Own()
    for name, part in parts.items():
        setattr(model, name, part)
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (change(num_heads=None), "does not say how many heads"),
        (change(num_heads=3), "no multiple of its 3 heads"),
        (change(q_norm=nn.LayerNorm(4)), "further part 'q_norm'"),
        (change(rotary=nn.Identity()), "further part 'rotary'"),
        (change(temperature=nn.Parameter(torch.ones(1))), "further parameter 'temperature'"),
        (change(k_proj=nn.Linear(8, 6), v_proj=nn.Linear(8, 6)), "do not fit its queries head by head"),
        (change(v_proj=nn.Linear(8, 4)), "do not fit its queries head by head"),
        (change(head_dim=3), "heads of 3, but queries of 4"),
        (change(q_proj=nn.Sequential(nn.Linear(8, 8))), "q_proj is Sequential, not a plain Linear"),
        (change(o_proj=nn.Identity()), "output is Identity, not a plain Linear"),
    ],
)
def test_what_is_not_understood_falls_back_with_a_reason(model: nn.Module, reason: str) -> None:
    found = sl.find_symmetries(model)
    assert len(found) == 0
    assert reason in found.leftovers[0].reason


def test_frozen_tied_and_unmeasured_parameters_take_their_pair_out() -> None:
    model, _ = build("ViT")
    layers = dict(model.named_modules())
    first, second = (layers[f"vit.layers.{i}.attention"] for i in (0, 1))
    first.k_proj.weight.requires_grad_(False)
    second.o_proj.weight = nn.Parameter(second.v_proj.weight.detach())
    second.v_proj.weight = second.o_proj.weight
    found = sl.find_symmetries(model)
    assert [b.name for b in found] == [
        "vit.layers.0.attention: values, output",
        "vit.layers.1.attention: queries, keys",
    ]
    reasons = " ".join(x.reason for x in found.leftovers)
    assert "vit.layers.0.attention.k_proj.weight, the other side of the pair, is frozen" in reasons
    assert "is tied to another part" in reasons
    chosen = [n for n, _ in model.named_parameters() if "q_proj" in n]
    assert len(sl.find_symmetries(model, parameters=chosen)) == 0


def test_a_module_used_twice_is_one_block() -> None:
    """ALBERT shares one layer among all depths; its symmetry holds as it stands."""
    torch.manual_seed(0)
    config = tf.AlbertConfig(**SMALL, vocab_size=20, embedding_size=8)
    model = tf.AlbertForSequenceClassification(config).double()
    found = sl.find_symmetries(model)
    assert len(found) in (0, 2)  # transformers keeps the output projection beside the others, under a name of its own
    if found:
        assert max(sl.verify_symmetries(model, tokens(), found).values()) < 1e-12

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
            self.two = self.one
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.two(self.one(x)).mean(1))
            return out

    twice = Twice().double()
    found = sl.find_symmetries(twice)
    assert len(found) == 2
    assert max(sl.verify_symmetries(twice, sequences(), found).values()) < 1e-12


def test_subclass_with_its_own_forward_is_refused() -> None:
    class Mine(nn.MultiheadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    found = sl.find_symmetries(nn.Sequential(Mine(8, 2)))
    assert len(found) == 0
    assert "forward pass of its own" in found.leftovers[0].reason


def test_tables_and_plain_data() -> None:
    model, _ = build("ViT")
    found = sl.find_symmetries(model)
    text = str(found)
    for words in ("vit.layers.0.attention: queries, keys", "GL(4)^2", "elementwise", "128 redundant"):
        assert words in text
    assert "<pre" in found._repr_html_()
    data = found.to_dict()
    assert data["redundant"] == 128
    assert (
        sum(x["size"] for x in data["elementwise"])
        + sum(dict(model.named_parameters())[n].numel() for b in data["blocks"] for n in b["parameters"])
        == data["parameters"]
    )


def test_bad_arguments() -> None:
    model, _ = build("ViT")
    blocks = sl.find_symmetries(model)
    with pytest.raises(ArgumentError, match="strength from 0 on"):
        sl.move_along_orbit(model, blocks, strength=-1)
    with pytest.raises(ArgumentError, match="condition number from 1 on"):
        sl.move_along_orbit(model, blocks, condition=0.5)
    with pytest.raises(ModelError, match=r"torch\.nn\.Module"):
        sl.find_symmetries("model")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="names of the model's parameters"):
        sl.find_symmetries(model, parameters=["nope"])
    with pytest.raises(ModelError, match="expected equal heads, columns and field"):
        sl.Pair("x", blocks[0].left, sl.Factor((sl.Piece("w", (1, 2, 3), batch=(0,), rows=(2,), column=1),)))


def test_a_registered_adapter_is_used() -> None:
    """A user's layout in ten lines."""
    from spiritlevel.symmetry.adapters import projection

    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.up(self.down(x)).mean(1)
            return out

    def low_rank(name: str, module: nn.Module, parent: nn.Module | None) -> list[sl.Pair] | None:
        if not isinstance(module, Low):
            return None
        right = sl.Factor((sl.Piece("up.weight", (8, 1, 2), batch=(1,), rows=(0,), column=2),))
        return [sl.Pair("low rank", projection("down", module.down, 1), right)]

    ADAPTERS.register("low rank of a test")(low_rank)
    try:
        model = Low().double()
        blocks = sl.find_symmetries(model)
        assert [b.group for b in blocks] == ["GL(2)"]
        assert max(sl.verify_symmetries(model, sequences(), blocks).values()) < 1e-12
    finally:
        ADAPTERS._entries.pop("low rank of a test")

"""Studies end to end, on networks of a few weights."""

import gc
import math
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spiritlevel as sl
from spiritlevel.measures import MEASURES, Options
from spiritlevel.study import Store, load_checkpoint, load_data, run_study
from spiritlevel.study.session import Session
from spiritlevel.study.units import Column
from zoos import network, settings, write_zoo

COLUMNS = [
    *("checkpoint", "hp.lr", "hp.seed", "hp.optimiser"),
    *("complexity.parameter-norm", "complexity.adaptive@0.5", "complexity.adaptive@1"),
    *("complexity.average-case-euclidean@0.1", "complexity.gradient-norm-euclidean"),
    *("gen.train_loss", "gen.train_error", "gen.iid_loss", "gen.iid_error", "gen.iid_gap"),
    *("gen.shifted_loss", "gen.shifted_error", "gen.shifted_gap"),
]

COLUMNS_OF_A_UNIT = [*COLUMNS[9:], *COLUMNS[4:9]]


def test_a_study_has_the_numbers_of_the_library(tmp_path: Path) -> None:
    """Kills: a measure of the wrong checkpoint, set or radius; a gap of the wrong sign; words as numbers."""
    write_zoo(tmp_path)
    table = run_study(settings(tmp_path))
    assert list(table.columns()) == COLUMNS
    assert table.names == ("run-0", "run-1", "run-2", "run-3")
    assert table.hp["optimiser"] == ("adam", "sgd", "adam", "sgd")
    assert table.hp["seed"] == (0, 1, 2, 3)
    assert table.hp["lr"] == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert table.failures == ()
    assert table.sizes == {"train": 12, "iid": 12, "shifted": 12}
    model = load_checkpoint(tmp_path / "runs" / "run-2.safetensors", network)
    problem = sl.Problem(model, load_data(tmp_path / "train.npz", 6))
    curve = sl.adaptive_sharpness(problem, [0.5, 1.0])
    assert [table.complexity[f"adaptive@{r}"][2] for r in ("0.5", "1")] == list(curve.values)
    assert table.per_batch["adaptive@0.5"][2] == curve[0].per_batch
    assert table.complexity["gradient-norm-euclidean"][2] == sl.gradient_norm(problem, sl.Euclidean()).value
    assert table.complexity["average-case-euclidean@0.1"][2] == sl.average_case(problem, sl.Euclidean(), 0.1, 4).value
    assert table.complexity["parameter-norm"][2] == pytest.approx(
        math.sqrt(sum(float((p.detach().double() ** 2).sum()) for p in model.parameters()))
    )
    for name in ("train", "shifted"):
        with np.load(tmp_path / f"{name}.npz") as data:
            scores, y = model(torch.from_numpy(data["x"])).detach(), torch.from_numpy(data["y"])
        assert table.gen[f"{name}_loss"][2] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, y)))
        assert table.gen[f"{name}_error"][2] == pytest.approx(float((scores.argmax(-1) != y).double().mean()))
    gap = table.gen["shifted_error"] - table.gen["train_error"]
    assert table.gen["shifted_gap"] == pytest.approx(gap)
    assert Store(tmp_path / "study.db").table().columns() == table.columns()


def test_a_second_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zoo(tmp_path)
    first = run_study(settings(tmp_path))
    monkeypatch.setattr("spiritlevel.study.session.Session.load", lambda *_: pytest.fail("loaded again"))
    assert run_study(settings(tmp_path)).columns() == first.columns()


def test_processes_give_the_same_table(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    one = run_study(settings(tmp_path), tmp_path / "one.db")
    two = run_study(settings(tmp_path, workers=2), tmp_path / "two.db", engine="processes")
    assert two.columns() == one.columns()
    assert two.per_batch == one.per_batch


@pytest.mark.parametrize("measure", MEASURES)
def test_any_measure_in_any_geometry(measure: str, tmp_path: Path) -> None:
    """Kills: a measure that a study cannot name; a geometry that is dropped on the way."""
    write_zoo(tmp_path, 1)
    spaces = ["euclidean", "elementwise", "quotient"]
    spaces = {"geodesic": ["quotient"], "adaptive": [], "adaptive-linf": []}.get(measure, spaces)
    given = [{"measure": measure, "geometry": s, "samples": 2} for s in spaces] or [measure]
    table = run_study(settings(tmp_path, measures=given))
    assert table.failures == ()
    found = {n: v[0] for n, v in table.complexity.items() if n.startswith(measure)}
    assert len(found) == len(given) * max(len(MEASURES[measure].radii), 1)
    problem = sl.Problem(load_checkpoint(tmp_path / "runs" / "run-0.safetensors", network),
                         load_data(tmp_path / "train.npz", 6))  # fmt: skip
    built = {"euclidean": sl.Euclidean(), "elementwise": sl.Elementwise(), "quotient": sl.Quotient()}
    for space in spaces or [None]:
        options = Options(rho=MEASURES[measure].radii, geometry=built.get(space or ""), samples=2)
        expected = [m.value for m in MEASURES[measure].run(problem, options)]
        name = measure if measure == "geodesic" or space is None else f"{measure}-{space}"
        assert [v for n, v in found.items() if n.partition("@")[0] == name] == expected


def test_everything_known_of_a_unit(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    run_study(settings(tmp_path))
    with Store(tmp_path / "study.db") as store:
        units = store.outcomes("run-0")
        (versions,) = store.table().facts["versions"]
    assert list(units) == list(COLUMNS_OF_A_UNIT)
    sharpness = units["complexity.adaptive@1"]
    assert len(sharpness.per_batch) == 2
    assert sharpness.value == pytest.approx(np.mean(sharpness.per_batch))
    assert sharpness.residual is not None
    assert 0 <= sharpness.residual < 1
    assert sharpness.evaluations is not None
    assert sharpness.evaluations > 2
    assert sharpness.seconds > 0
    assert sharpness.status == "converged"
    assert units["gen.iid_loss"].stats == {"examples": 12}
    assert versions["torch"] == torch.__version__


def test_a_settings_hash_is_the_same_tomorrow() -> None:
    """Written down once. Kills: a hash of addresses, of the order of keys, or of the day."""
    column = Column("complexity.a@0.1", {"rho": [0.05, 0.1], "what": "adaptive", "seed": 0})
    assert column.key == "9030989f3d2e8c17ce88"
    other = Column("complexity.b@0.1", {"seed": 0, "what": "adaptive", "rho": (0.05, 0.1)})
    assert other.key == column.key
    assert Column("complexity.a@0.1", {"rho": [0.06, 0.1], "what": "adaptive", "seed": 0}).key != column.key


def test_one_checkpoint_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a list of models; a model that waits for the garbage collector."""
    write_zoo(tmp_path)
    alive: list[weakref.ref[torch.nn.Module]] = []
    load = Session.load

    def counted(self: Session, checkpoint: Any) -> Any:
        assert [m for m in alive if m() is not None] == []
        bench = load(self, checkpoint)
        alive.append(weakref.ref(bench.model))
        return bench

    monkeypatch.setattr(Session, "load", counted)
    gc.disable()
    try:
        run_study(settings(tmp_path, measures=["geodesic", {"measure": "adaptive", "rho": {"rise": 0.1}}]))
    finally:
        gc.enable()
    assert len(alive) > 8


def test_the_caller_is_left_alone(tmp_path: Path) -> None:
    """Kills: a study that seeds the caller's generator, changes its threads or its search path."""
    write_zoo(tmp_path, 1)
    before = torch.get_rng_state(), torch.get_num_threads(), list(sys.path)
    run_study(settings(tmp_path, threads=2, seed=7))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_num_threads(), sys.path) == before[1:]


def noisy() -> torch.nn.Module:
    """A builder that leaves its weights to chance."""
    return network()


def test_what_is_left_to_chance_is_seeded(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    config = settings(tmp_path, seed=3)
    config["zoo"] = {"checkpoints": {"a": noisy, "b": noisy}}
    first = run_study(config, tmp_path / "1.db")
    torch.manual_seed(99)
    again = run_study(config, tmp_path / "2.db")
    assert again.columns() == first.columns()
    assert run_study({**config, "seed": 4}, tmp_path / "3.db").gen["train_loss"][0] != first.gen["train_loss"][0]


def test_a_part_of_the_training_data(tmp_path: Path) -> None:
    """Measures on the part, losses on all of it. Kills: errors of a part for those of the whole."""
    write_zoo(tmp_path, 1)
    config = settings(tmp_path, measures=["gradient-norm"])
    whole = run_study(config, tmp_path / "whole.db")
    found = {}
    for seed in (None, 0, 1):
        config["data"] = {**config["data"], "subset": 5, "subset_seed": seed}
        found[seed] = run_study(config, tmp_path / f"{seed}.db")
        assert found[seed].gen["train_loss"].tolist() == whole.gen["train_loss"].tolist()
    values = {s: t.complexity["gradient-norm"][0] for s, t in found.items()}
    assert len({*values.values(), whole.complexity["gradient-norm"][0]}) == 4
    problem = sl.Problem(load_checkpoint(tmp_path / "runs" / "run-0.safetensors", network),
                         load_data(tmp_path / "train.npz", 6, examples=5))  # fmt: skip
    assert values[None] == sl.gradient_norm(problem, sl.Quotient()).value


def loader() -> Any:
    x = torch.arange(30.0).reshape(10, 3) / 30
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.arange(10) % 2), batch_size=4)


def test_a_part_of_a_loader(tmp_path: Path) -> None:
    write_zoo(tmp_path, 1)
    config = settings(tmp_path, measures=["gradient-norm"], data={"train": loader, "subset": 6})
    assert run_study(config).failures == ()
    with Store(tmp_path / "study.db") as store:
        assert len(store.outcomes("run-0")["complexity.gradient-norm"].per_batch) == 2
    assert [len(y) for _, y in load_data(loader, examples=6)] == [4, 2]


def test_hugging_face_folders(tmp_path: Path) -> None:
    """Words of a language model are predicted one ahead. Kills: errors of tokens against themselves."""
    import transformers as tf

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**shape, num_key_value_heads=1, vocab_size=20)).eval()
    model.save_pretrained(tmp_path / "zoo" / "one")
    ids = torch.randint(0, 20, (6, 7))
    labels = ids.clone()
    labels[0, :4] = -100
    np.savez(tmp_path / "text.npz", input_ids=ids.numpy(), labels=labels.numpy())
    config = settings(tmp_path, measures=["gradient-norm"], data={"train": str(tmp_path / "text.npz")})
    config["zoo"] = {"checkpoints": str(tmp_path / "zoo" / "*"), "hyperparameters": {"one": {"width": 8}}}
    table = run_study(config)
    assert table.names == ("one",)
    assert table.failures == ()
    with torch.no_grad():
        guesses = model(input_ids=ids).logits[:, :-1].argmax(-1)
    counted = labels[:, 1:] != -100
    wrong = (guesses != labels[:, 1:])[counted].double().mean()
    assert table.gen["train_error"][0] == pytest.approx(float(wrong))
    assert table.sizes["train"] == int(counted.sum())

"""The monitor in trainers and loggers of others: real packages, the same weights bit for bit, a log that goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.errors import ArgumentError, DataError
from spiritlevel.integrations import lightning as in_lightning
from spiritlevel.integrations import loggers
from spiritlevel.integrations.trainer import MonitorCallback, watch
from spiritlevel.monitor import Monitor, read_log

F = nn.functional
quiet = pytest.mark.filterwarnings("ignore")  # trainers and loggers have much to say about small machines


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 3))


def data() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(24, 4, generator=g), torch.randint(3, (24,), generator=g))


class Augmented(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = data()[i]
        return {"x": x + 0.1 * torch.randn(4), "labels": y}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.net(x)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


def hugging(folder: Path, monitored: bool = True, **more: Any) -> Any:
    """A Trainer with dropout, augmentation and shuffling, and a callback that reads after every step."""
    resume = more.pop("resume", None)
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "save_strategy": "no", "report_to": []}
    quiet = {"disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "seed": 0, "learning_rate": 1e-2}
    arguments = transformers.TrainingArguments(output_dir=str(folder), **{**settings, **quiet, **more})
    trainer = transformers.Trainer(Classifier(), arguments, train_dataset=Augmented())
    if monitored:
        watch(trainer, log=folder / "log.jsonl", every=1, budget=None)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def end(trainer: Any) -> list[Tensor]:
    states = trainer.optimizer.state_dict()["state"]
    kept = [v for s in states.values() for v in s.values() if isinstance(v, Tensor)]
    return [*trainer.model.state_dict().values(), *kept, torch.get_rng_state()]


def losses(trainer: Any) -> list[float]:
    """What the Trainer logs of itself."""
    return [h["loss"] for h in trainer.state.log_history if "loss" in h]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@quiet
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="plain"),
        pytest.param({"bf16": True, "gradient_accumulation_steps": 2}, id="mixed and accumulated"),
        pytest.param({"dataloader_num_workers": 2}, id="workers", marks=pytest.mark.slow),
    ],
)
def test_the_trainer_of_transformers_trains_the_same(tmp_path: Path, how: dict[str, Any]) -> None:
    """Kills: iterating the training loader for the fixed batch, random states that are not put back, numbers that are
    logged in the place of the Trainer's own."""
    trainer = hugging(tmp_path, **how)
    after = end(trainer)
    without = hugging(tmp_path / "without", monitored=False, **how)
    assert same(after, end(without))
    steps = 12 // how.get("gradient_accumulation_steps", 1)
    log = read_log(tmp_path / "log.jsonl")
    assert [r.step for r in log.readings] == list(range(1, steps + 1))
    assert log.ended
    assert log.failures == []
    assert {"learning rate", "epoch"} == set(log.readings[-1].facts)
    logged = [h for h in trainer.state.log_history if "flatness/geodesic_0.1" in h]
    assert losses(trainer) == losses(without)
    assert len(losses(trainer)) == steps
    assert [h["step"] for h in logged] == list(range(1, steps + 1))
    assert logged[-1]["flatness/loss"] == pytest.approx(log.readings[-1].values["loss"])


@quiet
def test_mixed_precision_stays_out_of_the_readings(tmp_path: Path) -> None:
    """Kills: the forward pass that accelerate puts autocast around."""
    trainer = hugging(tmp_path, bf16=True)
    batch = trainer.callback_handler.callbacks[-1].monitor._batches[0]
    fresh = Classifier()
    fresh.load_state_dict(trainer.model.state_dict())
    problem = sl.Problem(fresh, [batch])
    exact = problem.value(problem.weights, batch)
    assert read_log(tmp_path / "log.jsonl").readings[-1].values["loss"] == pytest.approx(exact, abs=1e-7)
    half = sl.Problem(trainer.model, [batch])
    assert half.value(half.weights, batch) != pytest.approx(exact, abs=1e-5)


@quiet
def test_training_resumed_from_a_checkpoint_continues_the_log(tmp_path: Path) -> None:
    whole = hugging(tmp_path, save_strategy="epoch")
    (first, _) = sorted(tmp_path.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    before = read_log(tmp_path / "log.jsonl")
    again = hugging(tmp_path, save_strategy="epoch", resume=str(first))
    log = read_log(tmp_path / "log.jsonl")
    assert [r.step for r in log.readings] == list(range(1, 13))
    assert (log.dropped, [s["step"] for s in log.starts]) == (6, [0, 6])
    assert same([*again.model.state_dict().values()], [*whole.model.state_dict().values()])
    assert log.readings[-1].values["loss"] == before.readings[-1].values["loss"]


@quiet
def test_the_callback_by_itself_and_wrong_settings(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    seen: list[int] = []
    callback = MonitorCallback(every=1, budget=None, to=[lambda values, step: seen.append(step)])
    transformers.Trainer(Classifier(), arguments, train_dataset=Augmented(), callbacks=[callback]).train()
    assert seen == [1, 2]

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([Augmented()[0]] * 100)

    trainer = transformers.Trainer(Classifier(), arguments, train_dataset=Stream())
    watch(trainer)
    with pytest.raises(DataError, match="expected a DataLoader over a dataset that can be indexed"):
        trainer.train()
    trainer = transformers.Trainer(Classifier(), arguments, train_dataset=Augmented())
    watch(trainer, every=0)
    with pytest.raises(ArgumentError, match="expected every"):
        trainer.train()


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self(batch[0] + 0.1 * torch.randn(4)), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def lit(folder: Path, monitored: bool = True, module: Any = None, ckpt: str | None = None, **more: Any) -> Any:
    lightning.seed_everything(0, verbose=False)
    module = module or Lit()
    callbacks = more.pop("callbacks", [])
    if monitored:
        callbacks = [*callbacks, in_lightning.MonitorCallback(log=folder / "log.jsonl", every=1, budget=None)]
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
                "enable_checkpointing": bool(more.pop("saves", False)), "max_epochs": 2}  # fmt: skip
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=callbacks, **{**settings, **more})
    torch.manual_seed(1)
    loader = DataLoader(data(), batch_size=4, shuffle=True)
    trainer.fit(module, loader, ckpt_path=ckpt, **({"weights_only": False} if ckpt else {}))
    return trainer, module


def lit_end(trainer: Any, module: Any) -> list[Tensor]:
    kept = [v for s in trainer.optimizers[0].state.values() for v in s.values()]
    return [*module.state_dict().values(), *kept, torch.get_rng_state()]


@quiet
@pytest.mark.parametrize(
    "how", [{}, {"precision": "bf16-mixed", "accumulate_grad_batches": 2}], ids=["plain", "mixed and accumulated"]
)
def test_lightning_trains_the_same(tmp_path: Path, how: dict[str, Any]) -> None:
    with_it = lit_end(*lit(tmp_path, **how))
    assert same(with_it, lit_end(*lit(tmp_path / "without", monitored=False, **how)))
    log = read_log(tmp_path / "log.jsonl")
    assert [r.step for r in log.readings] == list(range(1, 12 // how.get("accumulate_grad_batches", 1) + 1))
    assert log.ended
    assert log.failures == []


@quiet
def test_lightning_logs_and_resumes(tmp_path: Path) -> None:
    """Numbers go to the trainer's own logger (TensorBoard's), and a resumed run adds to the log."""
    logger = lightning.pytorch.loggers.TensorBoardLogger(tmp_path)
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    lit(tmp_path, logger=logger, callbacks=[saver], saves=True)
    lit(tmp_path, ckpt=str(tmp_path / "epoch=0.ckpt"))
    log = read_log(tmp_path / "log.jsonl")
    assert [r.step for r in log.readings] == list(range(1, 13))
    assert [s["step"] for s in log.starts] == [0, 6]
    events = scalars(Path(logger.log_dir))
    assert [s for s, _ in events["flatness/geodesic_0.1"]] == list(range(1, 13))


# ------------------------------------------------------------------------------------------------------------ loggers


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads from a folder of events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def readings(sink: Any) -> list[Any]:
    (x, y) = data().tensors
    monitor = Monitor(network(), (x, y), every=2, budget=None, measures=["geodesic"], to=[sink])
    for _ in range(4):
        monitor.step()
    assert monitor.notes == []
    return monitor.readings


@quiet
def test_tensorboard(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    found = readings(loggers.tensorboard(SummaryWriter(str(tmp_path))))
    events = scalars(tmp_path)
    assert set(events) == {"flatness/loss", "flatness/gradient-norm", "flatness/geodesic_0.1", "flatness/share"}
    assert [s for s, _ in events["flatness/loss"]] == [2, 4]
    assert events["flatness/geodesic_0.1"][1][1] == pytest.approx(found[1].values["geodesic@0.1"])


@quiet
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    import mlflow

    mlflow.set_tracking_uri(tmp_path.as_uri())
    client = mlflow.MlflowClient()
    run = client.create_run(client.create_experiment("flatness"))
    found = readings(loggers.mlflow(run, client))
    history = client.get_metric_history(run.info.run_id, "flatness/geodesic_0.1")
    assert [(m.step, m.value) for m in history] == [(r.step, pytest.approx(r.values["geodesic@0.1"])) for r in found]
    with mlflow.start_run(run_id=run.info.run_id):
        readings(mlflow.log_metrics)  # a sink as it is
    assert len(client.get_metric_history(run.info.run_id, "flatness/loss")) == 4


@quiet
@pytest.mark.slow
def test_wandb_offline(tmp_path: Path) -> None:
    """In a process of its own, for it starts a service. Read back from the run's own file."""
    script = f"""
import os, glob
os.environ["WANDB_SILENT"] = "true"
import torch, wandb
from spiritlevel.integrations import loggers
from spiritlevel.monitor import Monitor
torch.set_num_threads(1)
run = wandb.init(mode="offline", dir={str(tmp_path)!r}, project="flatness")
run.log({{"mine": 1.0}}, step=10)
batch = torch.randn(8, 4), torch.randint(3, (8,))
monitor = Monitor(torch.nn.Linear(4, 3), batch, every=2, budget=None, measures=["geodesic"], to=[loggers.wandb(run)])
found = [r for r in (monitor.step() for _ in range(4)) if r]
assert monitor.notes == [], monitor.notes
run.log({{"mine": 2.0}}, step=11)  # the run's own counter was left alone
run.finish()
from wandb.proto import wandb_internal_pb2 as pb
content = open(glob.glob({str(tmp_path)!r} + "/wandb/offline-run-*/*.wandb")[0], "rb").read()
at, rows, raws, part = 7, [], [], b""
while at + 7 <= len(content):  # LevelDB's log: blocks of 32 KiB; a checksum, a length, a kind (whole, or a part)
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
    part += content[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        raws.append(part)
        part = b""
for raw in raws:
    record = pb.Record()
    record.ParseFromString(raw)
    if record.WhichOneof("record_type") == "history":
        rows.append({{(i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item}})
mine = [float(r["mine"]) for r in rows if "mine" in r]
flat = [(int(r["flatness/step"]), float(r["flatness/geodesic_0.1"])) for r in rows if "flatness/step" in r]
assert mine == [1.0, 2.0], rows
assert [step for step, _ in flat] == [r.step for r in found], (flat, found)
assert all(abs(v - r.values["geodesic@0.1"]) < 1e-9 for (_, v), r in zip(flat, found))
print(len(flat), "rows")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("rows")


def test_sinks_refuse_what_is_no_logger() -> None:
    for make in (loggers.tensorboard, loggers.wandb, lambda x: loggers.mlflow("run", x)):
        with pytest.raises(ArgumentError, match=r"expected (a|an) .*, got int"):
            make(3)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "package"), [("trainer", "transformers"), ("lightning", "lightning")])
def test_a_missing_package_is_named(module: str, package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import spiritlevel.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"expected the package '{package}'" in done.stderr

"""SAM inside real training loops: Lightning's and transformers' own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sam_oracles import flat
from spiritlevel.errors import ArgumentError
from spiritlevel.optim import SAM, SharpnessAware, rules

F = nn.functional


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def data() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(24, 4, generator=g), torch.randint(3, (24,), generator=g))


class Lit(lightning.LightningModule):
    def __init__(self, clip: bool = False) -> None:
        super().__init__()
        self.net, self.passes = network(), 0

    def training_step(self, batch: Any, index: int) -> Tensor:
        self.passes += 1
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        sam = SAM(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), rules.Plain(0.2), model=self)
        return {"optimizer": sam, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(sam, 0.5)}


def lit_trainer(tmp_path: Path, **more: Any) -> lightning.Trainer:
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(default_root_dir=tmp_path, **{**settings, "enable_checkpointing": False, **more})


quiet = pytest.mark.filterwarnings("ignore")  # Lightning and transformers have much to say about small machines


@quiet
def test_lightning_as_it_is(tmp_path: Path) -> None:
    # Kills: a step that Lightning's closure cannot serve, a scheduler that does not reach the base, a plain step.
    module, loader = Lit(), DataLoader(data(), batch_size=8)
    lit_trainer(tmp_path, max_epochs=2).fit(module, loader)
    net = network()
    sam = SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), rules.Plain(0.2), model=net)
    for epoch in range(2):
        for x, y in loader:
            sam.param_groups[0]["lr"] = 0.1 * 0.5**epoch
            sam.step(lambda x=x, y=y: F.cross_entropy(net(x), y))
    np.testing.assert_allclose(flat(module.net), flat(net), atol=1e-7)
    torch.testing.assert_close(dict(module.net.named_buffers()), dict(net.named_buffers()))
    assert module.passes == 12


@quiet
def test_lightning_resumes(tmp_path: Path) -> None:
    loader = DataLoader(data(), batch_size=8)
    whole = Lit()
    lit_trainer(tmp_path, max_epochs=3).fit(whole, loader)
    saver = ModelCheckpoint(dirpath=tmp_path, filename="half")
    lit_trainer(tmp_path, max_epochs=1, callbacks=[saver], enable_checkpointing=True).fit(Lit(), loader)
    again = Lit()
    lit_trainer(tmp_path, max_epochs=3).fit(again, loader, ckpt_path=str(tmp_path / "half.ckpt"), weights_only=False)
    assert np.array_equal(flat(again.net), flat(whole.net))


@quiet
def test_lightning_does_not_lose_micro_batches_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="give a list of closures for micro-batches"):
        lit_trainer(tmp_path, max_epochs=1, accumulate_grad_batches=2).fit(Lit(), DataLoader(data(), batch_size=8))


class Dictionary(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = data()[i]
        return {"x": x, "labels": y}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.net(x)
        return {"loss": F.cross_entropy(scores, labels), "logits": scores}


class SharpTrainer(SharpnessAware, transformers.Trainer):
    pass


def arguments(folder: Path, **more: Any) -> transformers.TrainingArguments:
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "max_grad_norm": 0.5, "save_strategy": "no"}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no", "seed": 0}
    return transformers.TrainingArguments(output_dir=str(folder), **{**settings, **quiet, **more})


def hugging(folder: Path, rule: rules.Rule, kind: type = SharpTrainer, **more: Any) -> tuple[Any, SAM, nn.Module]:
    model = Classifier()
    sam = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rule, model=model)
    schedule = torch.optim.lr_scheduler.LambdaLR(sam, lambda step: 1.0)
    trainer = kind(model, arguments(folder, **more), train_dataset=Dictionary(), optimizers=(sam, schedule))
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(Dictionary())
    return trainer, sam, model


def by_hand(rule: rules.Rule, micro: int) -> np.ndarray:
    net = network()
    sam = SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), rule, model=net, clip_norm=0.5)
    for _ in range(2):
        batches = list(DataLoader(data(), batch_size=8))
        for i in range(0, 3, micro):
            sam.step([lambda x=x, y=y: F.cross_entropy(net(x), y) for x, y in batches[i : i + micro]])
    return flat(net)


@quiet
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("rule", [rules.Plain(0.2), rules.LookSAM(0.2, every=2)], ids=["SAM", "LookSAM"])
def test_the_trainer_of_transformers(tmp_path: Path, rule: rules.Rule, micro: int) -> None:
    # Kills: the last micro-batch alone in the second pass, clipping of the first gradient, passes that are not saved.
    trainer, sam, model = hugging(tmp_path, rule, gradient_accumulation_steps=micro)
    trainer.train()
    np.testing.assert_allclose(flat(model), by_hand(rule, micro), atol=1e-6)
    assert sam.steps == 6 // micro


@quiet
def test_the_trainer_of_transformers_resumes(tmp_path: Path) -> None:
    rule = rules.LookSAM(0.2, every=4)
    trainer, _, whole = hugging(tmp_path / "a", rule, save_strategy="epoch")
    trainer.train()
    folder = sorted((tmp_path / "a").glob("checkpoint-*"))[0]
    trainer, sam, model = hugging(tmp_path / "b", rule)
    trainer.train(resume_from_checkpoint=str(folder))
    assert sam.steps == 6
    assert np.array_equal(flat(model), flat(whole))


@quiet
def test_without_the_mixin_or_without_sam_it_raises(tmp_path: Path) -> None:
    trainer, _, model = hugging(tmp_path, rules.Plain(), transformers.Trainer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match="this would be a plain step of the base optimizer"):
        trainer.train()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    model = Classifier()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SharpTrainer(model, arguments(tmp_path), train_dataset=Dictionary(), optimizers=(base, None))
    with pytest.raises(ArgumentError, match="expected a SAM in Trainer"):
        trainer.train()

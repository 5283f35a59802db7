"""What the pages on monitors and adapters show is run, block by block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import transformers
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from test_monitor_trainers import Augmented, Classifier, Lit, network
from test_peft import adapted, base, tokens

PAGES = Path(__file__).parent.parent / "docs"
BLOCKS = [
    pytest.param(page.name, code, id=f"{page.stem}-{i}")
    for page in (PAGES / "training_monitor.md", PAGES / "peft.md")
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


class Writer:
    """Enough of a SummaryWriter and of a run for a sink to be made."""

    step = 0

    def add_scalar(self, *_: Any, **__: Any) -> None: ...

    def define_metric(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, *_: Any, **__: Any) -> None: ...


def names(page: str, folder: Path) -> dict[str, Any]:
    """What the blocks take for granted."""
    if page == "peft.md":
        adapted(task_type="SEQ_CLS").save_pretrained(folder / "runs" / "adapter")
        return {"sl": sl, "model": base(), "batches": [tokens()]}
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 4, generator=g), torch.randint(3, (24,), generator=g))
    net = network()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    return {
        "sl": sl, "batch": data.tensors, "loader": DataLoader(data, batch_size=8), "lightning": lightning,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "transformers": transformers, "arguments": arguments,
        "loss_of": lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y), "module": Lit(),
        "writer": Writer(), "run": Writer(), "mlflow": Writer(), "net": net,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_every_block_runs(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an example that names what is not there any more, and one longer than the five lines it promises."""
    monkeypatch.chdir(tmp_path)
    known = names(page, tmp_path)
    if page != "peft.md":
        known |= {"model": Classifier(), "data": Augmented()} if "transformers" in code else {"model": known["net"]}
    exec(compile(code, page, "exec"), known)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 5
    assert len(BLOCKS) == 5

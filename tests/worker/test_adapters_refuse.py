"""What an adapter cannot keep is refused in a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from rex_worker.adapters.accelerate import Accelerator
from rex_worker.environment import Environment
from rex_worker.errors import UsageError
from rex_worker.session import Session


@pytest.fixture
def session() -> Session:
    return Session(Environment.read({}))


def data() -> TensorDataset:
    return TensorDataset(torch.randn(20, 3), torch.randn(20, 1))


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


class TestAccelerate:
    def test_settings_that_would_be_ignored(self, session: Session) -> None:
        with pytest.raises(UsageError, match="'no' and 'bf16'"):
            Accelerator(session, mixed_precision="fp16")
        with pytest.raises(UsageError, match="split_batches"):
            Accelerator(session, split_batches=True)

    def test_more_than_one_model(self, session: Session) -> None:
        with pytest.raises(UsageError, match="2 of kind model"):
            Accelerator(session).prepare(*parts(), nn.Linear(2, 2))

    def test_a_model_without_its_optimizer(self, session: Session) -> None:
        with pytest.raises(UsageError, match="in one call"):
            Accelerator(session).prepare(nn.Linear(2, 2))

    def test_a_loader_with_batches_of_its_own(self, session: Session) -> None:
        batches = BatchSampler(SequentialSampler(data()), 4, False)
        with pytest.raises(UsageError, match="batch sampler"):
            Accelerator(session).prepare(DataLoader(data(), batch_sampler=batches))

    def test_clipping_a_part_of_the_model(self, session: Session) -> None:
        accelerator = Accelerator(session)
        model, _ = accelerator.prepare(*parts())
        with pytest.raises(UsageError, match=r"give model.parameters\(\)"):
            accelerator.clip_grad_norm_(model.bias, 1.0)

    @pytest.mark.parametrize(("name", "remedy"), [("gather", "session.totals"), ("save_state", "REX_CHECKPOINT_DIR")])
    def test_what_is_not_there_names_what_is(self, session: Session, name: str, remedy: str) -> None:
        with pytest.raises(UsageError, match=rf"accelerator.{name} is not supported on REX: .*{remedy}"):
            getattr(Accelerator(session), name)

    def test_things_come_back_in_the_order_given(self, session: Session) -> None:
        model, optimizer = parts()
        given = DataLoader(data(), batch_size=5, shuffle=True)
        held_out = DataLoader(data(), batch_size=7)
        loader, prepared, same, other = Accelerator(session).prepare(given, optimizer, model, held_out)
        assert same is model and other is held_out
        assert prepared.param_groups is optimizer.param_groups and len(loader) == 4


class TestLightning:
    def fit(self, session: Session, **settings: Any) -> None:
        from lightning.pytorch import LightningModule, Trainer

        from rex_worker.adapters.lightning import RexStrategy

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Linear(3, 1)
                self.automatic_optimization = not settings.pop("manual", False)

            def training_step(self, batch: Any, index: int) -> torch.Tensor:
                return nn.functional.mse_loss(self.net(batch[0]), batch[1])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        module, resume = Module(), settings.pop("ckpt_path", None)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(strategy=RexStrategy(session), accelerator="cpu", **{"max_epochs": 1, **quiet, **settings})
        trainer.fit(module, DataLoader(data(), 5), ckpt_path=resume)

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"manual": True}, "needs automatic optimization"),
            ({"accumulate_grad_batches": 2}, "it is the plan's"),
            ({"max_steps": 5}, "use max_epochs"),
            ({"limit_train_batches": 3}, "make the dataset smaller"),
            ({"ckpt_path": "some.ckpt"}, "REX resumes by itself"),
        ],
    )
    def test_settings_that_cannot_be_kept(self, session: Session, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            self.fit(session, **settings)


class TestTransformers:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"num_train_epochs": 1.5}, "give a whole number"),
            ({"auto_find_batch_size": True}, "REX finds the batch"),
            ({"train_sampling_strategy": "group_by_length"}, "'random' or 'sequential'"),
            ({}, "resume_from_checkpoint: REX resumes by itself"),
        ],
    )
    def test_settings_that_cannot_be_kept(
        self, session: Session, tmp_path: Path, settings: dict[str, Any], words: str
    ) -> None:
        from transformers import TrainingArguments

        from rex_worker.adapters.transformers import ElasticTrainer

        args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **settings)
        with pytest.raises(UsageError, match=words):
            trainer = ElasticTrainer(session, model=nn.Linear(3, 1), args=args, train_dataset=data())
            trainer._prepare_for_training(1, None, "checkpoint-1")

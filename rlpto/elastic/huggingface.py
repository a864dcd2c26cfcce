"""Hugging Face's `transformers.Trainer` as an elastic job: `ElasticTrainer` replaces it."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlpto import elastic
from rlpto.io.errors import JobError
from rlpto.io.extras import extras
from rlpto.store.program_keys import OnNonfinite

with extras():
    from transformers import Trainer
    from transformers.trainer_utils import TrainOutput


class ElasticTrainer(Trainer):
    """A `Trainer` whose `train` is the loop of an elastic session.

    Model, data, collator, loss (including `compute_loss`), optimizer, `max_grad_norm` and the type of learning-rate
    schedule are the Trainer's. Epochs and batch size are the job's; without a service, the Trainer's arguments apply.
    The Trainer's logging, saving and callbacks during training are replaced by the job's. If `compute_metrics` returns
    an `accuracy`, it is called at ends of epochs.
    """

    on_nonfinite: OnNonfinite = "fail"
    """Effect of non-finite numbers, with the values of `elastic.session`."""

    def train(self, *_: Any, **__: Any) -> TrainOutput:
        """Train until the job is over. Raises JobError for arguments that have no effect here, and for a dataset
        without samples by index."""
        given = self.args
        for name, is_set in {
            "gradient_accumulation_steps": given.gradient_accumulation_steps != 1,
            "max_steps": given.max_steps > 0,
            "neftune_noise_alpha": given.neftune_noise_alpha is not None,
            "fp16": given.fp16,
            "bf16": given.bf16,
        }.items():
            if is_set:
                raise JobError(f"ElasticTrainer: {name} would have no effect: expected its default")
        data: Any = self.train_dataset
        data_size = elastic.samples_of(data, "ElasticTrainer: train_dataset")
        self.create_optimizer()
        model: Any = self.model
        model.train()  # as pretrained models are in evaluation mode
        optimizer: Any = self.optimizer
        judged = self.eval_dataset is not None and self.compute_metrics is not None
        if given.max_grad_norm:
            optimizer.register_step_pre_hook(lambda *_: _clip(model, given.max_grad_norm))
        loss, turns = float("nan"), 0
        with elastic.session(
            model,
            optimizer,
            data_size=data_size,
            scheduler=lambda optimizer, steps: self.create_scheduler(steps, optimizer),
            evaluate=self._accuracy if judged else None,
            epochs=given.num_train_epochs,
            batch_size=given.per_device_train_batch_size,
            on_nonfinite=self.on_nonfinite,
        ) as job:
            for inputs in job.batches(data, self.data_collator):
                found: Any = self.compute_loss(job.model, inputs)
                job.step(found)
                loss, turns = float(found.detach()), turns + 1
        return TrainOutput(turns, loss, {})

    def _accuracy(self, _: nn.Module) -> float | None:
        """Accuracy from `compute_metrics`, or None if it returns none."""
        found = self.evaluation_loop(self.get_eval_dataloader(), "evaluation", metric_key_prefix="eval")
        return (found.metrics or {}).get("eval_accuracy")


def _clip(model: nn.Module, most: float) -> None:
    """Scale the gradients, already averaged over workers, down to a norm."""
    nn.utils.clip_grad_norm_(model.parameters(), most)

"""Hugging Face's Trainer as an elastic job: a small BERT, with weights drawn here, sorts generated sentences.

rlpto submit examples/elastic_huggingface.py --samples 1000 --epochs 10 --gpus 2 --wait
"""

import tempfile

import torch

from rlpto.io.extras import extras

with extras():
    from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, TrainingArguments

    from rlpto.elastic.huggingface import ElasticTrainer

torch.manual_seed(0)
WORDS, LENGTH, SENTENCES = 50, 12, 1200
words = torch.randint(5, WORDS, (SENTENCES, LENGTH), generator=torch.Generator().manual_seed(1))
labels = (words[:, 1:] < 15).sum(1) > 2
rows = [{"input_ids": row, "labels": label} for row, label in zip(words, labels.long(), strict=True)]
network = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
)  # fmt: skip


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """Share of the held-out sentences that are sorted correctly."""
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    num_train_epochs=10,
    per_device_train_batch_size=32,
    learning_rate=3e-3,
    report_to=[],
    disable_tqdm=True,
)
ElasticTrainer(
    model=network, args=arguments, train_dataset=rows[:1000], eval_dataset=rows[1000:], compute_metrics=accuracy
).train()

"""A small language model on generated text: work of any size without a download."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.base import Batch, TrainingProgram

HELD_OUT = 128


class LanguageModel(TrainingProgram):
    """A transformer that predicts the next token of sequences drawn from a random Markov chain.

    Each token has `choices` likely successors, which gives something to learn and a limit to it: no model is right more
    often than about 1 / choices. Accuracy is the share of next tokens predicted.

    samples: training sequences. length: tokens of each. vocabulary: different tokens. width, depth, heads: sizes of the
    transformer; width is a multiple of heads. learning_rate: of AdamW, after a warm-up over 5 % of all steps and with
    a linear decay. data_seed: seed of the chain.
    """

    def __init__(
        self,
        samples: int = 2048,
        length: int = 32,
        vocabulary: int = 64,
        choices: int = 2,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        learning_rate: float = 3e-3,
        data_seed: int = 0,
    ) -> None:
        if min(samples, length, choices, width, depth, heads) < 1 or vocabulary < choices:
            raise JobError(
                "samples, length, choices, width, depth and heads must be at least 1, and vocabulary at least choices"
            )
        if width % heads:
            raise JobError(f"width is {width}: expected a multiple of heads ({heads})")
        self.data_size = samples
        self._length, self._vocabulary = length, vocabulary
        self._width, self._depth, self._heads = width, depth, heads
        self._learning_rate = learning_rate
        self._tokens = markov_chain(samples + HELD_OUT, length + 1, vocabulary, choices, data_seed)

    def model(self) -> nn.Module:
        """Embeddings of tokens and places, `depth` blocks of attention to earlier places, and a linear layer."""
        return Transformer(self._vocabulary, self._length, self._width, self._depth, self._heads)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """AdamW."""
        return AdamW(parameters, lr=self._learning_rate)

    def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """Warm up over the first 5 % of steps, then decay linearly to a tenth."""
        warm = max(1, steps // 20)

        def factor(step: int) -> float:
            return min((step + 1) / warm, max(0.1, 1 - (step - warm) / max(steps - warm, 1)))

        return LambdaLR(optimizer, factor)

    def batch(self, indices: Tensor) -> Batch:
        """Tokens [n, length], and the token after each."""
        rows = self._tokens[indices]
        return rows[:, :-1], rows[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy of the next token."""
        tokens, following = batch
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    def validation(self) -> Sequence[Batch]:
        """Sequences that training does not see."""
        return [self.batch(torch.arange(self.data_size, len(self._tokens)))]

    def accuracy(self, model: nn.Module, batch: Batch) -> Tensor:
        """Share of next tokens that are the likeliest by the model."""
        tokens, following = batch
        scores: Tensor = model(tokens)
        return (scores.argmax(-1) == following).float().mean()


class Transformer(nn.Module):
    """Decoder of `depth` blocks over sequences of up to `length` tokens: [n, length] to [n, length, vocabulary]."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at every place."""
        hidden: Tensor = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        scores: Tensor = self.out(self.norm(hidden))
        return scores


class Block(nn.Module):
    """Attention to earlier places and a perceptron, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [n, length, width] to the same shape."""
        samples, length, width = hidden.shape
        parts = self.mixed(self.before(hidden)).reshape(samples, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joined(seen.transpose(1, 2).reshape(samples, length, width))
        result: Tensor = hidden + self.inner(self.between(hidden))
        return result


def markov_chain(rows: int, length: int, vocabulary: int, choices: int, seed: int) -> Tensor:
    """Sequences [rows, length] in which each token has `choices` successors, all equally likely."""
    generator = torch.Generator().manual_seed(seed)
    following = torch.randint(vocabulary, (vocabulary, choices), generator=generator)
    draws = torch.randint(choices, (rows, length), generator=generator)
    tokens = torch.empty(rows, length, dtype=torch.long)
    tokens[:, 0] = torch.randint(vocabulary, (rows,), generator=generator)
    for place in range(1, length):
        tokens[:, place] = following[tokens[:, place - 1], draws[:, place]]
    return tokens

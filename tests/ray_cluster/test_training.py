"""Training of one worker without Ray, and groups of them in threads of one process."""

from __future__ import annotations

import math
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed import PrefixStore, TCPStore
from torch.optim.lr_scheduler import LambdaLR

from rlpto.io.errors import CheckpointError, JobError
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.programs.base import load_program
from rlpto.ray_cluster.worker.sampling import DrawForWholeBatch, Position, shard, step_seed
from rlpto.ray_cluster.worker.training import MOST_LINES, PrintedLines, Trainer
from rlpto.ray_cluster.worker.worker_group import AllReduceGroup, WorkerGroup, start_store
from tests.ray_cluster.programs import Tiny, weights_of
from tests.ray_cluster.running import make_spec
from tests.slow import few

DIGITS = "rlpto.ray_cluster.programs.digits"
SIZES = {"data_size": 1437, "batch_size": 64, "float64": False, "pace": None}
TINY = {"training": "tests.ray_cluster.programs:Tiny", "pace": None}


@given(
    size=st.integers(1, 200),
    seed=st.integers(0, 2**31),
    steps=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 9)), min_size=1, max_size=300),
)
def test_every_sample_is_used_once_an_epoch_whatever_the_batches_and_workers(
    size: int, seed: int, steps: list[tuple[int, int]]
) -> None:
    position = Position()
    used: dict[int, list[int]] = {}
    for batch_size, workers in steps:
        batch = position.batch(size, seed, batch_size)
        dealt = np.concatenate([shard(batch, rank, workers) for rank in range(workers)])
        used.setdefault(position.epoch, []).extend(dealt.tolist())
        position = position.after(size, len(batch))
    assert position.progress == sum(map(len, used.values()))
    for epoch, samples in used.items():
        assert len(set(samples)) == len(samples)
        if epoch < position.epoch:
            assert sorted(samples) == list(range(size))


def plain_torch(spec: JobSpec, steps: int) -> nn.Module:
    """What a user would write without us."""
    program = load_program(spec.training, spec.options)
    torch.manual_seed(spec.seed)
    model = program.model()
    optimizer = program.optimizer(model.parameters())
    starts = range(0, spec.data_size, spec.batch_size)
    for step in range(steps):
        epoch, start = step // len(starts), starts[step % len(starts)]
        order = np.random.default_rng((spec.seed, epoch)).permutation(spec.data_size)
        torch.manual_seed(step_seed(spec.seed, step))
        loss = program.loss(model, program.batch(torch.from_numpy(order[start : start + spec.batch_size])))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


@pytest.mark.parametrize("name", few(["DigitsMlp", "DigitsCnn"], "DigitsMlp"))
def test_one_worker_trains_bitwise_as_plain_torch_does(tmp_path: Path, name: str) -> None:
    spec = make_spec(tmp_path, training=f"{DIGITS}:{name}", epochs=2.0, **SIZES)
    trainer = Trainer(spec)
    trainer.warm_up()
    trainer.run(10)
    chunk = trainer.run(30)
    assert chunk.steps == 20
    assert torch.equal(weights_of(trainer.network), weights_of(plain_torch(spec, 30)))


class Attention(nn.Module):
    """Self-attention over 5 places of 4 numbers each."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.weights = weights

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        places = inputs.unflatten(1, (5, 4))
        found: torch.Tensor = self.attention(places, places, places, need_weights=self.weights)[0]
        return found.flatten(1)


class Noise(nn.Module):
    """Random numbers of other kinds: factories, those like a tensor, in place, with a probability for each entry."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(inputs) + torch.rand(len(inputs), 1) + torch.empty_like(inputs).exponential_(2.0)
        return inputs + noise * torch.bernoulli(torch.sigmoid(inputs.detach()))


@pytest.mark.parametrize("workers", [2, 3, 7, 12])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.Sequential(nn.Unflatten(1, (5, 4)), nn.Dropout1d(0.5), nn.Flatten()),
        nn.AlphaDropout(0.3),
        Attention(weights=True),
        Attention(weights=False),
        Noise(),
        nn.Identity(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_random_numbers_do_not_depend_on_the_number_of_workers(layer: nn.Module, workers: int) -> None:
    inputs = torch.randn(11, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layer = layer.double().train()
    torch.manual_seed(5)
    whole = layer(inputs)
    after = torch.rand(1)
    for rank in range(workers):
        own = shard(np.arange(11), rank, workers)
        torch.manual_seed(5)
        with DrawForWholeBatch(rank, workers, 11):
            part = layer(inputs[own if len(own) else [0]])
        torch.testing.assert_close(part, whole[own if len(own) else [0]], rtol=1e-12, atol=1e-12)
        assert torch.equal(torch.rand(1), after), "what is drawn next is the same too"


@pytest.mark.parametrize("rank", [0, 1])
def test_multinomial_draws_from_the_weights_it_is_given(rank: int) -> None:
    """Of 4 samples on 2 workers: a category for each of the own ones, and ten negative samples, from one vector."""
    certain = nn.functional.one_hot(torch.tensor([3, 5]), 8).double()
    with DrawForWholeBatch(rank, 2, 4):
        assert torch.multinomial(certain, 1).flatten().tolist() == [3, 5]
        assert torch.multinomial(certain[1], 10, replacement=True).tolist() == [5] * 10


TEXT = {"samples": 256, "length": 16, "vocabulary": 16, "width": 32, "depth": 1}


@pytest.mark.parametrize(
    ("more", "accuracy"),
    [
        ({"training": f"{DIGITS}:DigitsMlp", **SIZES}, 0.9),
        (
            {
                "training": "examples.language:LanguageModel",
                "options": TEXT,
                **SIZES | {"data_size": 256, "batch_size": 32},
            },
            1.5 / 16,
        ),
    ],
    ids=["digits", "text"],
)
def test_an_included_program_learns(tmp_path: Path, more: dict[str, object], accuracy: float) -> None:
    spec = make_spec(tmp_path, **more, epochs=8.0)
    chunk = Trainer(spec).run(10_000)
    assert chunk.finished
    steps = 8 * math.ceil(spec.data_size / spec.batch_size)
    assert chunk.position == Position(step=steps, epoch=8, offset=0, progress=8 * spec.data_size)
    assert chunk.accuracy > accuracy
    assert chunk.evaluated_at == 8.0
    assert 1 < chunk.noise_scale < 1e5


def test_a_batch_size_that_is_chosen_trains_as_a_job_of_that_size_and_counts_what_it_is_worth(tmp_path: Path) -> None:
    chosen, own = (Trainer(make_spec(tmp_path, **TINY, batch_size=size)) for size in (8, 32))
    chunk = chosen.run(20, 32)
    own.run(20)
    assert torch.equal(weights_of(chosen.network), weights_of(own.network))
    assert (chunk.batch_size, chunk.chosen) == (32, True)
    assert chunk.samples / 4 <= chosen.position.progress < chunk.samples, "samples of a larger batch are worth less"
    assert chosen.run(21).batch_size == 8


@pytest.mark.parametrize("own", [64, 200])
def test_a_batch_larger_than_the_data_counts_as_one_of_all_samples(tmp_path: Path, own: int) -> None:
    larger, whole = (Trainer(make_spec(tmp_path, **TINY, batch_size=own, lr_rule="linear")) for _ in range(2))
    larger.run(10, 512)
    whole.run(10, 101)
    assert torch.equal(weights_of(larger.network), weights_of(whole.network))
    assert larger.position == whole.position


def test_an_interrupted_step_leaves_nothing_behind(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, **TINY)
    interrupted, other = Trainer(spec), Trainer(spec)
    interrupted.run(5)
    other.run(5)
    interrupted.join(WorkerGroup(interrupted.network, interrupted.optimizer, world=2))
    with pytest.raises(NotImplementedError):  # where workers would meet
        interrupted.step()
    interrupted.join()
    interrupted.undo()
    assert interrupted.position == other.position
    interrupted.run(9)
    other.run(9)
    ours, theirs = interrupted.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"training": "no.such:Thing"}, "'no.such:Thing' cannot be imported"),
        ({"training": "tests.ray_cluster.programs:Nothing"}, "has no Nothing"),
        ({"training": "pathlib:Path"}, "is no TrainingProgram"),
        ({"options": {"depth": 3}}, "does not take the options"),
        ({"data_size": 102}, "data_size is 102, but .* has 101"),
        ({"id": "../b"}, "id is '../b'"),
        ({"session": "a:b"}, "session is 'a:b'"),
        ({"epochs": math.nan}, "epochs is nan: expected a positive number"),
        ({"batch_size": 0}, "batch_size is 0: expected a positive number"),
        ({"pace": 0.0}, "pace is 0.0"),
        ({"training": "examples.language:LanguageModel", "options": {"width": 30, "heads": 4}}, "multiple of heads"),
        ({"training": "examples.language:LanguageModel", "options": {"vocabulary": 1}}, "vocabulary at least choices"),
        ({"training": "examples.language:LanguageModel", "options": {"heads": 0}}, "heads must be at least 1"),
    ],
)
def test_jobs_and_programs_that_make_no_sense_are_refused(
    tmp_path: Path, more: dict[str, object], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        Trainer(make_spec(tmp_path, **more))


def test_a_mistake_in_the_module_of_a_program_is_shown_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job_with_a_mistake.py").write_text("import math\nmath.squirt(2)\nclass MyJob: ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="squirt"):
        load_program("job_with_a_mistake:MyJob", {})


@pytest.mark.parametrize("found", [math.inf, math.nan])
def test_an_accuracy_that_is_no_number_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: float) -> None:
    trainer = Trainer(make_spec(tmp_path))
    monkeypatch.setattr(trainer.program, "accuracy", lambda *_: found)
    assert math.isnan(trainer.evaluate())


def test_an_evaluation_leaves_parts_of_the_model_in_their_modes(tmp_path: Path) -> None:
    trainer = Trainer(make_spec(tmp_path))
    frozen, *others = trainer.network.children()
    frozen.eval()
    trainer.evaluate()
    assert not frozen.training
    assert all(one.training for one in (trainer.network, *others))


def test_steps_are_stretched_to_their_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    trainer = Trainer(make_spec(tmp_path, pace=0.5))
    trainer._evaluation_due = math.inf
    trainer.run(4)
    assert clock[0] == pytest.approx(102.0)


def test_options_that_json_cannot_say_are_refused(tmp_path: Path) -> None:
    assert '"options": {"adam": true}' in make_spec(tmp_path, options={"adam": True}).to_json()
    with pytest.raises(JobError, match="cannot be written as JSON"):
        make_spec(tmp_path, options={"when": object()}).to_json()


def test_printed_lines_are_kept_and_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    lines = PrintedLines()
    lines.install()
    print("one\ntwo", end="")
    print(" and more")
    print("bar 1\rbar 2\rdone", file=sys.stderr)
    assert [text for _, text in lines.take()] == ["one", "two and more", "done"]
    assert lines.take() == ()
    for number in range(MOST_LINES + 5):
        print(number)
    taken = lines.take()
    assert taken[0][1] == "(5 lines are left out)"
    assert len(taken) == MOST_LINES + 1
    assert capsys.readouterr().out.startswith("one\ntwo and more\n0\n")


def test_a_step_of_several_workers_with_dropout_is_that_of_one(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, training=f"{DIGITS}:DigitsCnn", **SIZES | {"float64": True}, options={"channels": 4})

    def gradient(rank: int, world: int) -> torch.Tensor:
        trainer = Trainer(spec)
        trainer.warm_up()
        trainer.group.rank, trainer.group.world = rank, world
        trainer.step()
        return torch.cat([p.grad.flatten() for p in trainer.network.parameters() if p.grad is not None])

    mean = torch.stack([gradient(rank, 3) for rank in range(3)]).mean(0)
    torch.testing.assert_close(mean, gradient(0, 1), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_weights_that_training_unfreezes_are_averaged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    spec = make_spec(tmp_path, training="tests.ray_cluster.programs:Unfrozen", pace=None, epochs=9.0)
    store = start_store("127.0.0.1")
    other = get_context("spawn").Process(target=unfreezing, args=(1, spec.to_json(), store.port))
    other.start()
    unfreezing(0, spec.to_json(), store.port)
    other.join()
    alone = Trainer(spec)
    alone.run(20)
    expected = weights_of(alone.network)
    found = {name: torch.load(tmp_path / name) for name in ("0-one", "1-one", "0-two", "1-two")}
    for name, (weights, _) in found.items():
        torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-12, msg=name)
    assert found["0-one"][1] == pytest.approx(found["0-two"][1]), "the noise is that of all weights"


def unfreezing(rank: int, text: str, port: int) -> None:
    """One of two workers, each in its process. They train 20 steps as one group; and again, where a new worker
    replaces the second one after step 10, when the first layer is no longer frozen."""
    spec = JobSpec.from_json(text)
    store = TCPStore("127.0.0.1", port, is_master=False)

    def join(trainer: Trainer, number: int, fresh: bool) -> None:
        trainer.join()
        group = AllReduceGroup(trainer.network, trainer.optimizer, PrefixStore(f"{number}", store), rank, 2, 60.0)
        trainer.join(group)
        state = group.share(trainer.state() if rank == 0 else None)
        if fresh:
            trainer.load(state)
        group.wrap(leaves_out=False)

    def save(trainer: Trainer, name: str) -> None:
        torch.save((weights_of(trainer.network), trainer.noise.noise_scale), f"{spec.folder}/{rank}-{name}")

    trainer = Trainer(spec)
    join(trainer, 0, fresh=True)
    trainer.run(10)
    middle = trainer.state()
    trainer.run(20)
    save(trainer, "one")
    trainer.join()
    if rank == 1:
        trainer = Trainer(spec)
    else:
        trainer.load(middle)
    join(trainer, 1, fresh=rank == 1)
    trainer.run(20)
    save(trainer, "two")
    trainer.join()


@pytest.mark.parametrize("adam", [True, False], ids=["adam", "SGD with a falling rate"])
def test_state_carries_over_to_another_process_in_the_middle_of_an_epoch(tmp_path: Path, adam: bool) -> None:
    spec = make_spec(tmp_path, **TINY, options={"adam": adam}, epochs=6.0)
    whole, half = Trainer(spec), Trainer(spec)
    whole.run(40)
    half.run(17)
    other = Trainer(spec)
    other.load(half.state())
    assert other.noise == half.noise
    other.run(40)
    assert other.position == whole.position
    assert torch.equal(weights_of(other.network), weights_of(whole.network))


def test_state_with_numpys_numbers_carries_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    falling = lambda _, optimizer, steps: LambdaLR(optimizer, lambda step: np.cos(step / steps))  # noqa: E731
    monkeypatch.setattr(Tiny, "scheduler", falling)
    trainer, other = (Trainer(make_spec(tmp_path, **TINY, epochs=6.0)) for _ in range(2))
    trainer.run(5)
    other.load(trainer.state())
    for one in (trainer, other):
        one.run(9)
    assert torch.equal(weights_of(other.network), weights_of(trainer.network))


def test_state_of_another_program_is_refused(tmp_path: Path) -> None:
    state = Trainer(make_spec(tmp_path)).state()
    other = Trainer(make_spec(tmp_path, training="tests.ray_cluster.programs:Tiny"))
    with pytest.raises(CheckpointError, match=r"state is not of tests\.ray_cluster\.programs:Tiny"):
        other.load(state)

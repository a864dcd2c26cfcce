"""Training loops of users' own, in one process: what they train, and what is said about those that break the rules."""

import math
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from rlpto import elastic
from rlpto.elastic import Session
from rlpto.io.errors import JobError
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.code_files import pack
from rlpto.store.program_keys import SCRIPTS
from tests.ray_cluster.programs import weights_of
from tests.ray_cluster.running import make_spec

ROOT = Path(__file__).parents[2]
PLAIN = (Path(__file__).parent / "plain_script.py").read_text()
LOOP = 1 + PLAIN[: PLAIN.index("for points")].count("\n")
DATA = torch.arange(10.0)[:, None]


@pytest.fixture(autouse=True)
def _main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script becomes the module __main__: that of the tests comes back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)


def begun(**more: Any) -> Any:
    """A session of a network with one weight."""
    network = nn.Linear(1, 1)
    return elastic.session(network, torch.optim.SGD(network.parameters(), lr=0.01), data_size=10, **more)


def test_a_script_trains_bit_by_bit_as_a_program_does(tmp_path: Path) -> None:
    script = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": PLAIN}, pace=None))
    program = Trainer(make_spec(tmp_path, pace=None))
    script.warm_up()
    for trainer in (script, program):
        trainer.run(10)
        trainer.run(30)
    assert torch.equal(weights_of(script.network), weights_of(program.network))
    again = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": PLAIN}, pace=None))
    again.load(program.state())
    again.run(35)
    program.run(35)
    assert torch.equal(weights_of(again.network), weights_of(program.network))


def test_a_script_finds_the_files_that_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where it lies: modules by import, data next to `__file__` or in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = tmp_path / "mine"
    (mine / "layers_of_mine").mkdir(parents=True)
    source = (
        "from pathlib import Path\nfrom layers_of_mine.one import make\n"
        "assert Path(__file__).with_name('data.txt').read_text() == Path('data.txt').read_text() == 'data'\n"
    ) + PLAIN.replace("layers.insert", "make.insert")
    (mine / "train.py").write_text(source)
    (mine / "data.txt").write_text("data")
    (mine / "layers_of_mine" / "one.py").write_text("def make(): ...")
    files = pack(mine / "train.py", [mine])
    options = {"source": source, "name": "train.py", "files": files, "folder": str(tmp_path / "job" / "code")}
    for _ in range(2):  # a second worker of the same node finds them there
        trainer = Trainer(make_spec(tmp_path, training=SCRIPTS, options=options, pace=None))
        trainer.run(3)
        assert trainer.position.step == 3
        sys.modules.pop("layers_of_mine.one")


def test_a_loop_run_by_itself_trains_all_epochs_and_says_how_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    epochs, seen = list[int](), list[float]()

    def clip(*_: object) -> None:
        """To nothing, so that nothing is learnt."""
        nn.utils.clip_grad_norm_(job.bare.parameters(), 0.0)

    with begun(epochs=3, batch_size=4, evaluate=lambda model: float(not model.training)) as job:
        before = weights_of(job.bare)
        job.optimizer.register_step_pre_hook(clip)
        for batch in job.batches(DATA):
            epochs.append(job.epoch)
            seen += batch.flatten().tolist()
            job.step(job.model(batch).square().mean())
    assert torch.equal(weights_of(job.bare), before)
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(seen) == sorted([float(n) for n in range(10)] * 3)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
    assert said[-1].endswith("accuracy 1")


def test_batches_are_indices_or_what_collate_makes_of_samples_or_of_those_of_a_loader() -> None:
    with begun(batch_size=10) as job:
        for rows in job.batches():
            assert sorted(rows.tolist()) == list(range(10))
            job.step(job.model(DATA[rows]).mean())
    kinds = {"a": torch.ones(1, dtype=torch.float64), "b": [3, "text"]}
    with begun(batch_size=10) as job:
        for batch in job.batches([kinds] * 10):
            assert batch["a"].dtype == torch.float32
            assert batch["b"][0].tolist() == [3] * 10
            job.step(job.model(batch["a"]).mean())
    loader, epochs = DataLoader(TensorDataset(DATA), collate_fn=lambda rows: torch.stack([row[0] for row in rows])), []
    with begun(batch_size=5, epochs=2) as job:
        for batch in job.batches(loader):
            assert batch.shape == (5, 1)
            job.step(job.model(batch).mean())
            epochs.append((job.epoch, job.rank))
    assert epochs == [(0, 0), (0, 0), (1, 0), (1, 0)], "they are known after the last step too"


def train(job: Session, turn: Callable[[Session, Tensor], object]) -> None:
    for rows in job.batches():
        turn(job, rows)


def mean(job: Session, rows: Tensor) -> Tensor:
    """The loss of a turn that keeps to the rules."""
    loss: Tensor = job.model(DATA[rows]).mean()
    return loss


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (lambda *_: None, r"without job\.step\(loss\)"),
        (lambda job, rows: (job.step(loss := mean(job, rows)), job.step(loss)), r"before its only job\.step"),
        (lambda job, rows: [job.step(mean(job, rows)) for _ in range(2)], r"before its only job\.step"),
        (lambda job, rows: job.step(job.bare(DATA[rows]).mean()), r"a loss of job\.model\(\.\.\.\)"),
        (lambda job, _: job.step(job.model.train().weight.sum()), r"a loss of job\.model\(\.\.\.\)"),
        (lambda job, rows: (mean(job, rows).backward(), job.step(mean(job, rows))), r"leave out loss\.backward"),
        (lambda job, rows: job.step(job.model(DATA[rows]).flatten()), r"a scalar .*, got a tensor of shape \(\d,\)"),
        (lambda job, _: job.step(0.5), "a scalar with gradients, got float"),
        (lambda job, _: next(job.batches(iter(DATA))), "samples by index, got tuple_iterator"),
    ],
)  # fmt: skip
def test_turns_that_break_the_rules_are_refused(turn: Callable[[Session, Tensor], object], message: str) -> None:
    with pytest.raises(JobError, match=message), begun(batch_size=4, epochs=9) as job:
        train(job, turn)


def test_an_optimizer_has_parameters_of_the_model_alone_but_need_not_have_all() -> None:
    network, temperature = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), nn.Parameter(torch.ones(1))
    foreign = torch.optim.SGD([*network.parameters(), temperature], lr=0.01)
    with (
        pytest.raises(JobError, match="parameters that are not the model's"),
        elastic.session(network, foreign, data_size=10),
    ):
        pass
    before = [one.detach().clone() for one in network.parameters()]
    head = torch.optim.SGD(network[1].parameters(), lr=0.01)
    with elastic.session(network, head, data_size=10, batch_size=4, epochs=2) as job:
        train(job, lambda job, rows: job.step(mean(job, rows)))
    assert [torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("share", [1.5, -0.1, math.nan])
def test_an_accuracy_is_a_share(share: float) -> None:
    with pytest.raises(JobError, match="expected a share from 0 to 1"), begun(evaluate=lambda _: share) as job:
        train(job, lambda job, rows: job.step(mean(job, rows)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print(1)", "ended without entering an elastic.session"),
        ("def", r"train\.py: not Python: invalid syntax \(train\.py, line 1\)"),
        ("import sys; sys.exit(3)", r"train\.py exited with 3"),
        ("import sys\nsys.exit()", r"train\.py exited with 0 \(train\.py, line 2\)"),
        ("raise KeyboardInterrupt", "was interrupted"),
        ("-" * 30_000 + "1", "not Python: (MemoryError|RecursionError|too many)"),
        (PLAIN.replace("data_size=101", "data_size=102"), "samples are 101, data_size of its session is 102"),
        (PLAIN.replace("data_size=101", "data_size=100"), "samples are 101, data_size of its session is 100"),
        (PLAIN + "        break\n", "left its loop before its job did"),
        (PLAIN + "        with elastic.session(network, optimizer, data_size=1): pass\n", "this is its second"),
        (
            PLAIN.replace("        job.step(", "        print("),
            rf"without job\.step\(loss\).* \(train\.py, line {LOOP}\)",
        ),
    ],
)
def test_scripts_that_cannot_train_say_why(tmp_path: Path, source: str, message: str) -> None:
    options = {"source": source, "name": "train.py"}
    with pytest.raises(JobError, match=message):
        Trainer(make_spec(tmp_path, training=SCRIPTS, options=options, pace=None)).run(3)


def test_a_script_is_the_main_module_and_its_draws_follow_the_seed(tmp_path: Path) -> None:
    imports = "from __future__ import annotations\nimport random, typing, pickle, dataclasses, numpy\n"
    own = "@dataclasses.dataclass\nclass A: pass\n@dataclasses.dataclass\nclass B:\n    a: A\n"
    check = "assert typing.get_type_hints(B) == {'a': A}\nassert pickle.loads(pickle.dumps(B)) is B\n"
    source = imports + own + check + "draws = numpy.random.rand(), random.random()\n" + PLAIN
    spec = make_spec(tmp_path, training=SCRIPTS, options={"source": source}, pace=None)
    found = []
    for _ in range(2):
        Trainer(spec)
        found.append(vars(sys.modules["__main__"])["draws"])
    assert found[0] == found[1]


def test_an_exception_in_the_loop_shows_its_line(tmp_path: Path) -> None:
    source = PLAIN + "        raise KeyError(job.epoch)\n"
    trainer = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": source, "name": "t.py"}, pace=None))
    with pytest.raises(KeyError) as raised:
        trainer.run(2)
    last = raised.traceback[-1]
    assert (str(last.path), last.lineno + 1) == ("t.py", len(source.splitlines()))


def diverging(**more: Any) -> None:
    with begun(epochs=4, **more) as job:
        for turn, points in enumerate(job.batches(DATA)):
            job.step(job.model(points).mean() * (math.nan if turn == 1 else 1.0))


def test_training_that_becomes_nan_ends_or_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError, match=r"'script': the loss is nan after step 2 \(epoch 2\): expected finite numbers"):
        diverging()
    capsys.readouterr()
    diverging(on_nonfinite="warn")
    shown = capsys.readouterr().out
    assert shown.count("warning: the loss is nan after step 2") == 1
    assert "epoch 4 of 4: loss nan" in shown
    with pytest.raises(JobError, match="on_nonfinite is 'ignore', expected fail or warn"):
        diverging(on_nonfinite="ignore")


def test_weights_that_are_not_finite_are_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rule in ("fail", "warn"):
        trainer = Trainer(make_spec(tmp_path, pace=None, on_nonfinite=rule))
        trainer.run(2)
        assert trainer.checked_state() == (trainer.state(), True)
        next(trainer.network.parameters()).data[0] = math.inf
        if rule == "fail":
            with pytest.raises(JobError, match=r"weights are NaN or infinite after step 2"):
                trainer.checked_state()
        else:
            assert not trainer.checked_state()[1]
            assert "warning: weights are NaN or infinite after step 2" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightning") is None, reason="needs the extra lightning")
def test_lightning_ends_with_nan() -> None:
    from lightning import LightningModule

    from rlpto.elastic.lightning import fit

    class Diverging(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            return self.line(batch).mean() * math.nan

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    with pytest.raises(JobError, match="the loss is nan after step"):
        fit(Diverging(), DATA, batch_size=5)
    fit(Diverging(), DATA, batch_size=5, on_nonfinite="warn")


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs the extra lightning")
def test_what_lightning_has_trained_loads_into_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    from lightning import LightningModule

    from rlpto.elastic.lightning import _TrainingStep, fit

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1)

        def training_step(self, batch: Tensor, number: int) -> dict[str, Tensor]:
            return {"loss": self.line(batch).square().mean() + 0 * number}

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module = Line()
    falling = lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)  # noqa: E731
    fit(module, DATA, scheduler=falling, epochs=2, batch_size=5)
    assert "epoch 2 of 2" in capsys.readouterr().out
    kept = _TrainingStep(module).state_dict()
    other = Line()
    other.load_state_dict(kept)
    assert torch.equal(other.line.weight, module.line.weight)


class Stream(IterableDataset[Tensor]):
    """A stream of a known length."""

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(DATA)


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs the extra lightning")
def test_data_and_schedules_that_lightning_would_use_otherwise_are_refused() -> None:
    from lightning import LightningModule

    from rlpto.elastic.lightning import fit

    class Scheduled(LightningModule):
        def __init__(self, **schedule: Any) -> None:
            super().__init__()
            self.line, self.schedule = nn.Linear(1, 1), schedule

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            return self.line(batch).mean()

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            falling: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            scheduled = {"scheduler": falling, **self.schedule} if self.schedule else falling
            return {"optimizer": optimizer, "lr_scheduler": scheduled}

    fit(Scheduled(interval="step"), DATA, batch_size=5)
    with pytest.raises(JobError, match="samples by index, got DataLoader"):
        fit(Scheduled(interval="step"), DataLoader(TensorDataset(DATA)))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="samples by index, got Stream"):
        fit(Scheduled(interval="step"), Stream())
    for module in (Scheduled(), Scheduled(interval="epoch"), Scheduled(interval="step", frequency=2)):
        with pytest.raises(JobError, match="whose interval is step at most, got SGD, a scheduler of epochs"):
            fit(module, DATA)
        fit(module, DATA, batch_size=5, scheduler=torch.optim.lr_scheduler.StepLR)


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs the extra lightning")
def test_lightning_numbers_batches_by_the_steps_of_the_job_in_a_new_worker_too(tmp_path: Path) -> None:
    source = """
import torch
from lightning import LightningModule
from rlpto.elastic.lightning import fit

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        print("batch", number)
        return self.line(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

fit(Line(), torch.arange(101.0)[:, None])
"""
    spec = make_spec(tmp_path, training=SCRIPTS, options={"source": source}, pace=None)
    first, second = Trainer(spec), Trainer(spec)
    first.warm_up()
    first.run(5)
    second.warm_up()
    second.load(first.state())
    with redirect_stdout(StringIO()) as said:
        second.run(7)
    assert said.getvalue() == "batch 5\nbatch 6\n"


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra huggingface")
@pytest.mark.parametrize(
    "given", [{"gradient_accumulation_steps": 2}, {"bf16": True}, {"max_steps": 5}, {"neftune_noise_alpha": 5.0}]
)
def test_arguments_of_hugging_face_without_effect_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    from transformers import TrainingArguments

    from rlpto.elastic.huggingface import ElasticTrainer

    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, **given)
    trainer = ElasticTrainer(nn.Linear(1, 1), arguments, train_dataset=[1])
    with pytest.raises(JobError, match=f"{next(iter(given))} would have no effect: expected its default"):
        trainer.train()
    trainer = ElasticTrainer(nn.Linear(1, 1), TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True))
    with pytest.raises(JobError, match=r"train_dataset: expected a dataset with a length .*, got NoneType"):
        trainer.train()


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra huggingface")
def test_a_pretrained_model_of_hugging_face_trains_in_training_mode(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from rlpto.elastic.huggingface import ElasticTrainer

    modes = set[bool]()

    class Trained(ElasticTrainer):
        def compute_loss(self, model: nn.Module, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
            modes.add(model.training)
            return model(inputs).mean()

    arguments = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    collate: Any = torch.stack
    Trained(nn.Linear(1, 1).eval(), arguments, train_dataset=DATA, data_collator=collate).train()
    assert modes == {True}


@pytest.mark.parametrize(
    ("example", "library"),
    [
        ("loop", "torch"),
        pytest.param("huggingface", "transformers", marks=pytest.mark.slow),
        ("lightning", "lightning"),
    ],
)
def test_an_example_learns(
    example: str, library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported what all of them need."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install -c constraints.txt -e '.[{example}]'")
    program = str(ROOT / "examples" / f"elastic_{example}.py")
    monkeypatch.setattr(sys, "argv", [program])
    runpy.run_path(program, run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"epoch (\d+) of \1:", last)
    assert float(last.rpartition("accuracy ")[2]) > 0.75

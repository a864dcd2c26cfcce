"""Training loops of users' own, in one process: what they train, and what is said about those that break the rules."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlpto import elastic
from rlpto.elastic import Session
from rlpto.io.errors import JobError
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.program_keys import SCRIPTS
from tests.ray_cluster.running import make_spec

ROOT = Path(__file__).parents[2]
PLAIN = (Path(__file__).parent / "plain_script.py").read_text()
DATA = torch.arange(10.0)[:, None]


def begun(**more: Any) -> Any:
    """A session of a network with one weight."""
    network = nn.Linear(1, 1)
    return elastic.session(network, torch.optim.SGD(network.parameters(), lr=0.01), data_size=10, **more)


def weights_of(trainer: Trainer) -> Tensor:
    return torch.cat([one.detach().flatten() for one in trainer.network.parameters()])


def test_a_script_trains_bit_by_bit_as_a_program_does(tmp_path: Path) -> None:
    script = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": PLAIN}, pace=None))
    program = Trainer(make_spec(tmp_path, pace=None))
    script.warm_up()
    for trainer in (script, program):
        trainer.run(10)
        trainer.run(30)
    assert torch.equal(weights_of(script), weights_of(program))
    again = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": PLAIN}, pace=None))
    again.load(program.state())
    again.run(35)
    program.run(35)
    assert torch.equal(weights_of(again), weights_of(program))


def test_a_loop_run_by_itself_trains_all_epochs_and_says_how_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    epochs, seen = list[int](), list[float]()
    with begun(epochs=3, batch_size=4, evaluate=lambda model: float(not model.training)) as job:
        for batch in job.batches(DATA):
            epochs.append(job.epoch)
            seen += batch.flatten().tolist()
            job.step(job.model(batch).square().mean())
    assert epochs == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(seen) == sorted([float(n) for n in range(10)] * 3)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
    assert said[-1].endswith("accuracy 1")


def test_batches_are_indices_or_what_collate_makes_of_samples() -> None:
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


def _no_step(job: Session) -> None:
    for _ in job.batches():
        pass


def _two_steps(job: Session) -> None:
    for rows in job.batches():
        loss = job.model(DATA[rows]).mean()
        job.step(loss)
        job.step(loss)


def _own_model(job: Session) -> None:
    model = job.bare
    for rows in job.batches():
        job.step(model(DATA[rows]).mean())


def _vector(job: Session) -> None:
    for rows in job.batches():
        job.step(job.model(DATA[rows]).flatten())


def _number(job: Session) -> None:
    for _ in job.batches():
        job.step(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (_no_step, r"without job\.step\(loss\)"),
        (_two_steps, "has to come from job.model, asked for in every turn"),
        (_own_model, "has to come from job.model"),
        (_vector, "a scalar with gradients"),
        (_number, "a scalar with gradients"),
    ],
)
def test_loops_that_break_the_rules_are_refused(loop: Callable[[Session], None], message: str) -> None:
    with pytest.raises(JobError, match=message), begun(batch_size=4, epochs=9) as job:
        loop(job)


@pytest.mark.parametrize("share", [1.5, -0.1, math.nan])
def test_an_accuracy_is_a_share(share: float) -> None:
    def loop(job: Session) -> None:
        for batch in job.batches(DATA):
            job.step(job.model(batch).mean())

    with pytest.raises(JobError, match="expected a share from 0 to 1"), begun(evaluate=lambda _: share) as job:
        loop(job)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print(1)", "ended without entering an elastic.session"),
        ("def", r"train\.py: not Python: invalid syntax \(train\.py, line 1\)"),
        ("import sys; sys.exit(3)", r"train\.py exited with 3"),
        (PLAIN.replace("data_size=101", "data_size=102"), "data_size is 101, but .* has 102"),
        (PLAIN.replace("data_size=101", "data_size=100"), "data_size is 101, but .* has 100"),
    ],
)
def test_scripts_that_cannot_train_say_why(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": source, "name": "train.py"}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("        break\n", "ended before its job did"),
        ("        with elastic.session(network, optimizer, data_size=1): pass\n", "this is its second"),
    ],
)
def test_a_script_that_leaves_its_loop_cannot_go_on(tmp_path: Path, change: str, message: str) -> None:
    trainer = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": PLAIN + change}, pace=None))
    with pytest.raises(JobError, match=message):
        trainer.run(3)
    assert not trainer.program.can_go_on


def test_an_exception_in_the_loop_shows_its_line(tmp_path: Path) -> None:
    source = PLAIN + "        raise KeyError(job.epoch)\n"
    trainer = Trainer(make_spec(tmp_path, training=SCRIPTS, options={"source": source, "name": "t.py"}, pace=None))
    with pytest.raises(KeyError) as raised:
        trainer.run(2)
    last = raised.traceback[-1]
    assert (str(last.path), last.lineno + 1) == ("t.py", len(source.splitlines()))


@pytest.mark.parametrize(
    ("example", "library"), [("loop", "torch"), ("huggingface", "transformers"), ("lightning", "lightning")]
)
def test_an_example_learns(example: str, library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install -c constraints.txt -e '.[{example}]'")
    command = [sys.executable, str(ROOT / "examples" / f"elastic_{example}.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("epoch 5 of 5")
    assert float(last.rpartition("accuracy ")[2]) > 0.75

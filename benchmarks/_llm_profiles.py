"""Profiles of large models from public measurements: `python benchmarks/_llm_profiles.py DATA OUT`.

DATA: folder of the sources' tables (arena, rubick, vtrain, llm-foundry, megatron-bridge, mlperf). OUT: where a file
of YAML for each source goes; the shipped ones are in `rlpto/performance/profiles/llm`. At every size the best plan of
parallelism counts; Rubick's tables name the plans. What sources do not state is nominal and says so: progress,
accuracy, the delay of a rescale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.performance.size_table import SizeTable

Steps = dict[tuple[int, int], float]
"""Seconds of the best step by (GPUs, nodes)."""
RESCALE_S = 260
"""Seconds that Rubick's simulator charges for a reallocation (SOURCE: its artifact)."""
NODE_GPUS = {"gb200": 4, "gb300": 4}
"""GPUs of a node where they are not eight."""


def keep_best(steps: Steps, gpus: int, nodes: int, seconds: float) -> None:
    """Note a measured step if it is the fastest there; 0 and infinity stand for plans that failed."""
    if 0 < seconds < np.inf:
        steps[gpus, nodes] = min(seconds, steps.get((gpus, nodes), np.inf))


def rows_of(steps: Steps) -> tuple[tuple[int, int, float], ...]:
    """(nodes, GPUs, seconds) in the order of a table."""
    return tuple((nodes, gpus, float(f"{seconds:.4g}")) for (gpus, nodes), seconds in sorted(steps.items()))


def document(
    name: str,
    about: str,
    source: str,
    batch: int,
    kinds: dict[str, Steps],
    whole: float = 1e4,
    plans: dict[str, Steps] | None = None,
) -> str:
    """A profile as YAML. batch: samples of a step. whole: steps of a whole training. plans: whose best `kinds` are."""
    tables = {kind: SizeTable(rows_of(steps)) for kind, steps in kinds.items() if steps}
    by_plan = {plan: rows_of(steps) for plan, steps in sorted((plans or {}).items())}
    errors = [error for table in tables.values() for error in table.held_out_errors()]
    stated = "{}"
    if errors:
        median, high = np.quantile(errors, [0.5, 0.9])
        stated = f"{{throughput_median: {median:.3g}, throughput_p90: {high:.3g}}}"
    given = {kind: {"plans": by_plan} if plans else {"steps": table.steps} for kind, table in sorted(tables.items())}
    rows = "".join(
        f"  {kind}:\n    throughput: {{law: table, {key}: {json.dumps(value)}}}\n"
        for kind, law in given.items()
        for key, value in law.items()
    )
    return (
        f"name: {name}\ndescription: {about}\nsource: '{source}'\n"
        f"samples: {whole * batch / 10:.6g}\nepochs: 10\n".replace("e+", "e+")
        + f"batch: {{base: {batch}, largest: {batch}, min_local: 1, max_local: {batch}, largest_chosen: 0}}\n"
        f"noise: {{epochs: [0.0], noise_scale: [{float(batch)}]}}\n"
        "accuracy: {meaning: 'nominal, not measured', untrained: 0.0, final: 1.0, scale: 3.0, shape: 1.0}\n"
        f"rescale_delay: {RESCALE_S}\nerrors: {stated}\nkinds:\n{rows}"
    )


def arena(data: Path) -> Iterable[str]:
    """Best plans of Arena, by model, parameters and global batch."""
    table = pd.read_csv(data / "arena/optimal_plan_iteration_s.csv")
    for (model, size, batch), rows in table.groupby(["model", "params", "global_batch"]):
        kinds: dict[str, Steps] = {}
        for row in rows.itertuples():
            keep_best(kinds.setdefault(row.gpu, {}), row.nodes * row.gpus_per_node, row.nodes, row.iteration_s)
        if len(rows) > 1:
            about = f"{model} of {size} parameters, global batch {batch}"
            source = "Arena (sjtu-epcc/arena, EuroSys 2026, Apache-2.0): best measured plan"
            yield document(f"arena-{model}-{size}-{batch}".lower().replace("_", ""), about, source, batch, kinds)


def rubick(data: Path) -> Iterable[str]:
    """Step times of Rubick on A800 by plan; its tables do not state batches, so a step counts as 1,024."""
    for model in ("bert", "roberta", "vit", "t5", "t5_3B", "gpt2", "llama7", "llama30"):
        steps: Steps = {}
        plans: dict[str, Steps] = {}
        for row in (
            pd.read_csv(data / f"rubick/traces/{model}.csv", dtype=str).astype({"iter_time": float}).itertuples()
        ):
            placement = [int(digit) for digit in row.placement]
            size = sum(placement), len(placement)
            keep_best(steps, *size, row.iter_time)
            keep_best(plans.setdefault(rubick_plan(row.exec_plan), {}), *size, row.iter_time)
        source = "Rubick (AlibabaPAI/reconfigurable-dl-scheduler, MLSys 2025, Apache-2.0): measured plans"
        about = f"{model} on nodes of 8 A800; a step counts as 1,024 samples"
        name = f"rubick-{model}".lower().replace("_", "-")
        yield document(name, about, source, 1024, {"a800": steps}, plans=plans)


def rubick_plan(plan: str) -> str:
    """Our name of a plan of Rubick's: pipeline stages x tensor degree of its three digits, whose last one, the
    data-parallel degree, follows from the GPUs."""
    return f"{plan[0]}x{plan[1]}" if plan.isdigit() else plan


def vtrain(data: Path) -> Iterable[str]:
    """Megatron-DeepSpeed on A100 as measured for vTrain: each model on one size only, best over plans."""
    table = pd.read_csv(data / "vtrain/ground_truth_multi.csv", encoding="utf-8-sig")
    for (size, batch, length), rows in table.groupby(["Parameters (billion)", "global batch", "sequence length"]):
        steps: Steps = {}
        for gpus, millis in zip(rows["# GPUs"], rows["iteration time (ms)"], strict=True):
            keep_best(steps, int(gpus), int(gpus) // 8, millis / 1000)
        source = "vTrain (VIA-Research/vTrain, MIT): measured iterations of Megatron-DeepSpeed, best plan"
        about = f"GPT of {size:g} B parameters, {batch} sequences of {length} tokens; samples are tokens"
        yield document(f"vtrain-{size:g}b", about, source, int(batch * length), {"a100": steps})


def foundry(data: Path) -> Iterable[str]:
    """MPT on H100 and A100: tokens per second as measured at batches that grow with the GPUs, as steps of 2^22."""
    table = pd.read_csv(data / "llm-foundry/mpt_training_throughput.csv")
    table = table[(table["SeqLen (T)"] == 2048) & table["Precision"].str.contains("bf16")]
    for model, rows in table.groupby("Model"):
        kinds: dict[str, Steps] = {}
        for gpu, gpus, rate in zip(rows["GPU"], rows["# GPUs"], rows["Throughput (T/s)"], strict=True):
            kind = str(gpu).split("_", maxsplit=1)[0]
            keep_best(kinds.setdefault(kind, {}), int(gpus), -(-int(gpus) // 8), 2**22 / float(rate))
        source = "LLM-foundry (mosaicml/llm-foundry, Apache-2.0): measured tokens per second, bf16, 2,048 tokens"
        yield document(f"mpt-{model}", f"MPT {model}; samples are tokens", source, 2**22, kinds)


def megatron(data: Path) -> Iterable[str]:
    """Megatron-Bridge, H100 to GB300, pre-training: tokens per second of the fastest precision, as steps of 2^22."""
    table = pd.read_csv(data / "megatron-bridge/performance_summary.csv")
    table = table[(table["task"] == "Pre-Training Performance") & table["System"].notna()]
    for model, rows in table.groupby("model"):
        kinds: dict[str, Steps] = {}
        for system, count, rate in zip(rows["System"], rows["#-GPUs"], rows["Tokens / sec / GPU"], strict=True):
            kind, gpus = str(system).removeprefix("DGX-").lower(), int(count)
            each = float(str(rate).replace(",", ""))
            keep_best(kinds.setdefault(kind, {}), gpus, -(-gpus // NODE_GPUS.get(kind, 8)), 2**22 / (each * gpus))
        name = re.sub(r"[^a-z0-9.]+", "-", str(model).removeprefix("Model: ").lower())
        source = "Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge, Apache-2.0): published tokens per second and GPU"
        yield document(f"bridge-{name}", f"{model}; samples are tokens".replace("Model: ", ""), source, 2**22, kinds)


MLPERF = {
    "llama2_70b_lora": ("Llama 2 70B, LoRA", 8192, 8, 3072),
    "llama31_405b": ("Llama 3.1 405B", 8192, 1152, 276_480),
}
"""About, tokens of a sequence, and a global batch with the samples that it takes to the target."""
SYSTEMS = ((r"GB200|tyche|carina", "gb200"), (r"B200|nyx|1cc_b200|G893-SD1|AS-A126|NBRT|NBR-", "b200"),
           (r"H200", "h200"), (r"eos-dfw", "h100"), (r"MI300X", "mi300x"), (r"MI325X", "mi325x"))  # fmt: skip
"""Patterns of systems' names, and their kinds of GPU."""
COUNT = (
    (r"ngpu(\d+)", 1), (r"(\d+)x[A-Z0-9]+x(\d+)", 0), (r"(\d+)xBM\.GPU\.\w+\.(\d+)", 0), (r"_n(\d+)_", 8),
    (r"^nyx_n(\d+)", 8),
)  # fmt: skip
"""Patterns of the number of GPUs in systems' names, and GPUs of each thing counted; 0: of the second group."""


def mlperf(data: Path) -> Iterable[str]:
    """MLPerf Training 5.0: whole runs to the target quality, so that samples beyond those of the base batch count."""
    kinds: dict[str, dict[str, Steps]] = {name: {} for name in MLPERF}
    for line in (data / "mlperf_v5.0_llm_summary.txt").read_text(encoding="utf-8").splitlines():
        path, _, _, minutes, *_ = (part.strip() for part in line.split("|"))
        system, name = path.split("/")[2:4]
        kind = next((kind for pattern, kind in SYSTEMS if re.search(pattern, system)), None)
        found = next(((match, each) for pattern, each in COUNT if (match := re.search(pattern, system))), None)
        if kind is None or found is None or "NVL" in system:
            continue
        gpus = int(found[0][1]) * (found[1] or int(found[0][2]))
        _, _, batch, samples = MLPERF[name]
        nodes = -(-gpus // NODE_GPUS.get(kind, 8))
        keep_best(kinds[name].setdefault(kind, {}), gpus, nodes, float(minutes) * 60 * batch / samples)
    for name, (about, length, batch, samples) in MLPERF.items():
        source = "MLPerf Training v5.0 (mlcommons/training_results_v5.0, Apache-2.0): minutes of whole runs"
        text = f"{about} to its target; samples are tokens of the base batch of {batch} sequences, statistically"
        yield document(f"mlperf-{name}".replace("_", "-"), text, source, batch * length, kinds[name], samples / batch)


def main() -> None:
    """Write all files."""
    data, out = map(Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    for source in (arena, rubick, vtrain, foundry, megatron, mlperf):
        documents = list(source(data))
        (out / f"{source.__name__}.yaml").write_text("---\n".join(documents), encoding="utf-8")
        print(f"{source.__name__}: {len(documents)} profiles")


if __name__ == "__main__":
    main()

"""rlpto-bench: frozen cases, scores, and submissions that can be checked by running a part of them again.

Importing this registers the cases for training: `gymnasium.make("rlpto.bench:rlpto/Bench-microsoft04-0.9-v1")`.
"""

from gymnasium.envs.registration import register

from rlpto.bench.suite import VERSION, cases

for _case in (case.id for case in cases() if case.trains):
    register(
        id=f"rlpto/Bench-{_case}-v{VERSION}",
        entry_point="rlpto.bench.suite:case_env",
        vector_entry_point="rlpto.bench.suite:case_vector_env",
        kwargs={"case": _case},
    )

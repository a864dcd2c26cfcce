from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.store.database import Store
from rlpto.store.jobs import STATES, NewJob, change_job, insert_job, list_jobs

ONE = NewJob(
    owner="ann", name="first", program="digits", epochs=3, max_gpus=2, options={"lr": 0.1}, labels={"team": "x"}
)


@settings(max_examples=25, deadline=None)
@given(
    data=st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from(STATES), st.booleans()), max_size=12),
    limit=st.integers(1, 5),
    owner=st.sampled_from([None, "ann"]),
    states=st.lists(st.sampled_from(STATES), max_size=3, unique=True),
    labelled=st.booleans(),
)
def test_pages_hold_every_job_once(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[tuple[str, str, bool]],
    limit: int,
    owner: str | None,
    states: list,
    labelled: bool,
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "service.sqlite", durable=False)
    expected = []
    for name, state, has_label in data:
        job = insert_job(store, replace(ONE, owner=name, labels={"a": "b"} if has_label else {}), 1.0)
        change_job(store, job.id, 2.0, state=state)
        if owner in (None, name) and (not states or state in states) and (has_label or not labelled):
            expected.append(job.id)
    found: list[str] = []
    before = None
    label = "a=b" if labelled else None
    while page := list_jobs(store, owner=owner, states=states, label=label, before=before, limit=limit):
        found += [job.id for job in page]
        before = page[-1].seq
    assert found == expected[::-1]

"""Tables of job types that are made already, as a source of them like profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rlpto.performance.profiles import ModelFacts, TypeTables
from rlpto.performance.tables import ONE_KIND, JobType


@dataclass(frozen=True)
class MadeTables:
    """Tables that are made already, as a source of them."""

    parts: Mapping[tuple[JobType, str], TypeTables]

    @cached_property
    def _facts(self) -> dict[str, ModelFacts]:
        return {kind.model: part.facts for (kind, _), part in self.parts.items()}

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, sorted."""
        return tuple(sorted(self._facts))

    def facts(self, model: str) -> ModelFacts:
        """Size and limits of a model, which all its types have."""
        return self._facts[model]

    def type_tables(
        self,
        job_type: JobType,
        max_gpus: int,  # noqa: ARG002
        gpus_per_node: int,  # noqa: ARG002
        gpu: str = ONE_KIND,
    ) -> TypeTables:
        """The tables of a type on GPUs of a kind."""
        return self.parts[job_type, gpu]

"""What a forecaster has been told: it grows by every update, and is read as a series at any time."""

from __future__ import annotations

import numpy as np

from rlpto.forecasting.series import FloatArray, TimeSeries


class History:
    """Observed counts and covariates in arrays that grow in place."""

    def __init__(self, series: TimeSeries | None = None, covariates: FloatArray | None = None) -> None:
        self.series = series
        self.covariates = covariates
        self._buffers: dict[str, FloatArray] = {}

    @property
    def columns(self) -> int:
        """Columns of the covariates."""
        return 0 if self.covariates is None else self.covariates.shape[1]

    def append(self, values: FloatArray, covariates: FloatArray | None) -> None:
        """Add [n] counts, and [n, K] covariates if there are any."""
        assert self.series is not None
        grown = self._grown("values", self.series.values, values)
        self.series = TimeSeries(grown, self.series.step, self.series.start)
        if self.covariates is not None and covariates is not None:
            self.covariates = self._grown("covariates", self.covariates, covariates)

    def _grown(self, name: str, old: FloatArray, new: FloatArray) -> FloatArray:
        size = len(old) + len(new)
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = np.empty((2 * size, *old.shape[1:]))
            buffer[: len(old)] = old
            self._buffers[name] = buffer
        buffer[len(old) : size] = new
        return buffer[:size]

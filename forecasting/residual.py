"""Networks around other forecasters: the textbook hybrid, and a gate over simple members."""

from __future__ import annotations

from typing import ClassVar

from rlpto.forecasting.gru import Experts, GruForecaster


class ResidualHybrid(GruForecaster):
    """The textbook hybrid: an ARIMA, and a GRU on its residuals (after Zhang 2003, with a GRU as the second model).

    The ARIMA (log1p with Fourier terms) is fitted first; the GRU reads its one-step errors and learns what it
    leaves over at every step ahead. Nothing protects it from being worse than its own ARIMA where the level shifts:
    `HybridForecaster` does that. Arguments as for GruForecaster.
    """

    kind: ClassVar[str] = "residual_hybrid"
    experts: ClassVar[Experts] = (("arima_fourier", {}),)
    innovations: ClassVar[bool] = True


class GatedGru(GruForecaster):
    """A GRU that says, step by step, how far to trust each of several simple members, and corrects their mix.

    A softmax gate over the members' forecasts in log1p (a mixture of experts, Jacobs et al. 1991). Arguments as for
    GruForecaster.
    """

    kind: ClassVar[str] = "gated_gru"
    experts: ClassVar[Experts] = (
        ("naive", {}),
        ("moving_average", {"hours": 3.0}),
        ("moving_average", {"hours": 24.0}),
        ("seasonal_naive", {"hours": 24.0}),
        ("seasonal_naive", {"hours": 168.0}),
        ("arima_log", {}),
        ("arima_fourier", {}),
        ("linear", {}),
    )

"""Forecasts of the jobs that will arrive, by priority class, from arrivals as they happen.

The methods are in `rlpto.forecasting`, which knows series and no jobs. `settings.py`: the configuration keys.
`online.py`: forecasts from earlier jobs and arrivals, for the states that policies see and for the windows of an
experiment. `sampled.py`: joint samples of future counts, and jobs made of them. `volume.py`: arrivals and task volume
of a service.
"""

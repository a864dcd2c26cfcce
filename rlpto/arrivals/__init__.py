"""Forecasts of the jobs that will arrive, by priority class, from arrivals as they happen.

The methods are in `rlpto.forecasting`, which knows series and no jobs. `settings.py`: the configuration keys.
`online.py`: from what came before a workload and arrivals to forecasts, to the states that policies see, and to the
windows of an experiment. `sampled.py`: joint samples of the counts to come, and jobs made of them. `volume.py`:
arrivals and task volume of a service.
"""

"""Task volume: forecasts of the jobs that will arrive, by priority class, from arrivals as they happen.

The methods are in `rlpto.forecasting`, which knows series and no jobs; here they serve the scheduler's loop and
training. `settings.py`: the configuration keys. `past.py`: what came before a workload, and loading a fitted
forecaster. `online.py`: from arrivals to forecasts, and the object that adds them to the states that policies see.
`windows.py`: the same for the windows of an experiment, one by one or all at once. `paths.py`, `futures.py`: joint
samples of the counts to come, and jobs made of them, for plans that look ahead.
"""

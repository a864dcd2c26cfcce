"""The coming task volume as a scheduler knows it: forecasts from arrivals as they happen, by priority class.

`settings.py`: the keys; `past.py`: what came before a workload, and fitted forecasters put on it; `online.py`: from
arrivals to forecasts, and the object that puts them into the states that policies see; `windows.py`: all of that
for the windows of an experiment.
"""

"""The web process of the job service: REST, streams of events, and pages. It imports neither Ray nor torch."""

"""Performance models: throughput, statistical efficiency, accuracy, compiled to speed tables."""

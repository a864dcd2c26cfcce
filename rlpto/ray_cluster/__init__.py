"""A cluster in real time: elastic training jobs on Ray, each driven by a job controller of its own."""

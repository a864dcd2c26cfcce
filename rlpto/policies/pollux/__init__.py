"""Pollux: shares, GPUs, nodes and batch sizes by goodput, after Qiao et al., OSDI 2021."""

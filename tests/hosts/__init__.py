"""Hosts on one machine, each with its own network, processes, name, /tmp and /dev/shm, and tests of jobs on them."""

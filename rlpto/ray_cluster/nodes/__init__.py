"""Ray clusters of several nodes on this machine: started, watched and ended by us."""

"""Looking ahead: a scratch copy of a cluster, made from its presently known state."""

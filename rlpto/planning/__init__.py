"""Looking ahead: a scratch copy of a cluster, from what is known of it now."""

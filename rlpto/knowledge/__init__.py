"""Estimates of jobs' speeds and remaining work, as a scheduler knows them."""

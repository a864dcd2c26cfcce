"""What a scheduler believes of jobs: speeds and remaining work."""

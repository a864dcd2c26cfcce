"""The words of the field as types: jobs, clusters, queues, policies, rewards, and the decision loop."""

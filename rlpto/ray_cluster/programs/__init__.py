"""What jobs train: the base class of programs, and those that come with RLPTO."""

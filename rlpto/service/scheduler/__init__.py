"""The scheduler process of the job service: takes jobs and requests from the books, and writes what happens."""

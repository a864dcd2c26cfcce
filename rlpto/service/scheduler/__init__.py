"""The scheduler process of the job service: takes jobs and requests from the books, decides, and writes what happens."""

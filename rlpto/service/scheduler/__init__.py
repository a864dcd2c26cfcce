"""The scheduler process of the job service: takes jobs and requests from the database, and writes what happens."""

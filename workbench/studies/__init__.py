"""Training, evaluation, efficiency and their committed records: what only the tables of the papers need."""

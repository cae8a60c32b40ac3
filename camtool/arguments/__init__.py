"""Check the arguments of public functions: models, order, and keyword names from other libraries."""

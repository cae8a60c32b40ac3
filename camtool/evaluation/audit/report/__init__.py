"""The page of an audit, and its pictures."""

"""The page: what it says, its template, style and script, and the files beside it."""

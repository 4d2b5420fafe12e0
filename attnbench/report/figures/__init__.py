"""The figures of a report, a file each: they stand alone, and on a page that has a theme."""

"""Data directories written by earlier formats. They are never rewritten; a new format adds one."""

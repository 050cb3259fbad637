"""The version of the distribution: the one place that names it."""

VERSION = "0.1.0"

"""What people look at: the report as one HTML page, and plots for papers (`kann.reporting.plots`)."""

from kann.reporting.page import report

__all__ = ["report"]

"""Present results: the report as one HTML page, figures for papers (`kann.reporting.plots`), and shaded text."""

# Nothing is imported here: pages need jinja2, figures need matplotlib, and shaded text needs neither.

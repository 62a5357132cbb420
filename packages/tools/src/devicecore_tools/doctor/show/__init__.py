"""Shows a report as a picture, a page and metrics."""

"""`report.html`: results of runs as one page that needs no network. Torch-free."""

"""Reports: measures by hand, renderings, plots, traces, comparisons."""

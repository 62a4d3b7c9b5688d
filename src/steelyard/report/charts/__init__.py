"""Charts, one module per kind: each turns an analysis into Vega-Lite with a data table and a text description."""

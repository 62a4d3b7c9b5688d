"""Charts, one file a kind: what an analysis found goes in, Vega-Lite with its table and its words comes out."""

"""Write pages as HTML, LaTeX, Markdown and CSV, and charts as SVG, PNG and PDF."""

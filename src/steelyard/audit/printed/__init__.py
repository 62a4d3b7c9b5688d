"""Tables as people print them: Markdown, wide CSV, LaTeX and HTML in, rows and what was understood out."""

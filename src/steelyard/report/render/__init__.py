"""Pages as files: HTML, LaTeX, Markdown, CSV, and charts as pictures."""
